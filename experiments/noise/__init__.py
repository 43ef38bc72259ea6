"""Rewards told the other way round: which method amplifies the noise?"""
