(** Prints the axioms under every theorem; check.sh compares them with allowed_axioms.txt. *)
From OGRPO Require Import Calculus.
From OGRPO Require Import Prob.
From OGRPO Require Import Divergence.
From OGRPO Require Import Importance.
From OGRPO Require Import Clip.
From OGRPO Require Import Improvement.
From OGRPO Require Import NSample.
From OGRPO Require Import OptimalTruncation.
From OGRPO Require Import SelfNormalized.
From OGRPO Require Import TokenSurrogate.
From OGRPO Require Import Mixture.
From OGRPO Require Import KLEstimators.
From OGRPO Require Import GroupReinforce.
From OGRPO Require Import Masking.
From OGRPO Require Import Certificate.

Print Assumptions Calculus.fan_exp.
Print Assumptions Prob.popoviciu.
Print Assumptions Divergence.tv_dual.
Print Assumptions Divergence.tv_pos_part.
Print Assumptions Divergence.tv_min.
Print Assumptions Divergence.kl_ge0.
Print Assumptions Divergence.pinsker.
Print Assumptions Divergence.chi2_ge0.
Print Assumptions Divergence.kl_le_ln_chi2.
Print Assumptions Divergence.kl_le_chi2.
Print Assumptions Divergence.m2_ge_exp_kl.
Print Assumptions Divergence.chi2_le_sup.
Print Assumptions Divergence.chi2_le_kappa_kl.
Print Assumptions Divergence.kl_data_processing.
Print Assumptions Divergence.kl_does_not_bound_chi2.
Print Assumptions Importance.is_unbiased.
Print Assumptions Importance.is_unsupported.
Print Assumptions Importance.is_variance.
Print Assumptions Importance.ratio_variance.
Print Assumptions Importance.truncation_bias.
Print Assumptions Importance.truncation_bias_le0.
Print Assumptions Importance.truncation_bias_bound.
Print Assumptions Importance.two_sided_clip_bias.
Print Assumptions Importance.is_unbiased_n.
Print Assumptions Importance.is_mse.
Print Assumptions Importance.is_sample_complexity.
Print Assumptions Importance.truncated_mse.
Print Assumptions Importance.ess_ge1.
Print Assumptions Importance.ess_eq1.
Print Assumptions Importance.ess_le_n.
Print Assumptions Importance.ess_eqn.
Print Assumptions Importance.ess_scale.
Print Assumptions Importance.ess_normalised.
Print Assumptions Importance.ess_ge_inv_max.
Print Assumptions Clip.feps_cases.
Print Assumptions Clip.feps_inner_max.
Print Assumptions Clip.feps_le.
Print Assumptions Clip.feps_touch.
Print Assumptions Clip.feps_mono.
Print Assumptions Clip.feps_concave.
Print Assumptions Clip.feps_ppo.
Print Assumptions Clip.feps_unbounded.
Print Assumptions Clip.feps_gap_le.
Print Assumptions Clip.feps_slope.
Print Assumptions Clip.decoupled_ppo.
Print Assumptions Improvement.kl_no_harm.
Print Assumptions Improvement.kl_no_harm_old.
Print Assumptions Improvement.kl_no_harm_relative.
Print Assumptions Improvement.improvement_identity.
Print Assumptions Improvement.sharp_improvement.
Print Assumptions Improvement.improvement_no_blowup.
Print Assumptions Improvement.published_improvement.
Print Assumptions Improvement.published_vacuous.
Print Assumptions Improvement.variance_le_quarter.
Print Assumptions Improvement.mm_baseline.
Print Assumptions Improvement.minorise_maximise.
Print Assumptions Improvement.mm_touch.
Print Assumptions Improvement.sharp_attained.
Print Assumptions Improvement.proposal_theorem1_false.
Print Assumptions Improvement.published_false_sigma_gt1.
Print Assumptions NSample.baseline_unbiased.
Print Assumptions NSample.leave_one_out_unbiased.
Print Assumptions NSample.group_mean_factor.
Print Assumptions NSample.leave_one_out_vs_mean.
Print Assumptions NSample.group_mean_factor_off_policy.
Print Assumptions NSample.binary_advantage.
Print Assumptions NSample.binomial_others.
Print Assumptions NSample.c_group_binomial.
Print Assumptions OptimalTruncation.mse_le_upper.
Print Assumptions OptimalTruncation.mse_binary.
Print Assumptions OptimalTruncation.fixed_point_least_upper.
Print Assumptions OptimalTruncation.optimal_clip_fixed_point.
Print Assumptions OptimalTruncation.residual_increasing.
Print Assumptions OptimalTruncation.fixed_point_unique.
Print Assumptions OptimalTruncation.fixed_point_monotone.
Print Assumptions OptimalTruncation.fixed_point_rate.
Print Assumptions OptimalTruncation.fixed_point_exists.
Print Assumptions SelfNormalized.snis_between.
Print Assumptions SelfNormalized.snis_shift.
Print Assumptions SelfNormalized.snis_scale.
Print Assumptions SelfNormalized.snis_one_sample.
Print Assumptions SelfNormalized.snis_mse.
Print Assumptions SelfNormalized.snis_bias.
Print Assumptions SelfNormalized.snis_bias_sqrt.
Print Assumptions TokenSurrogate.token_surrogate_gap.
Print Assumptions TokenSurrogate.token_surrogate_bound.
Print Assumptions TokenSurrogate.token_surrogate_attained.
Print Assumptions Mixture.mixture_m2.
Print Assumptions Mixture.mixture_chi2.
Print Assumptions Mixture.staleness_iff.
Print Assumptions Mixture.inverse_variance_helps.
Print Assumptions Mixture.pooled_variance.
Print Assumptions Mixture.tokens_m2.
Print Assumptions Mixture.tokens_min.
Print Assumptions Mixture.normalised_ratio_mass.
Print Assumptions KLEstimators.k1_unbiased.
Print Assumptions KLEstimators.k3_mean.
Print Assumptions KLEstimators.k3_unbiased.
Print Assumptions KLEstimators.k1_weighted.
Print Assumptions KLEstimators.k3_weighted.
Print Assumptions KLEstimators.k1_gradient.
Print Assumptions KLEstimators.k2_gradient.
Print Assumptions KLEstimators.k3_gradient.
Print Assumptions GroupReinforce.pairwise_expansion.
Print Assumptions GroupReinforce.pairwise_gradient.
Print Assumptions GroupReinforce.opmd_minus_pairwise.
Print Assumptions GroupReinforce.opmd_gradient.
Print Assumptions GroupReinforce.asymre_extra.
Print Assumptions GroupReinforce.red_weight_extra.
Print Assumptions GroupReinforce.group_reinforce_gradient.
Print Assumptions GroupReinforce.red_drop_mean.
Print Assumptions GroupReinforce.asymre_kl.
Print Assumptions Masking.zero_variance_gradient.
Print Assumptions Masking.masking_keeps_sum.
Print Assumptions Masking.survival_probability.
Print Assumptions Masking.survivors_mean.
Print Assumptions Certificate.lower_confidence.
Print Assumptions Certificate.bernstein_radius.
Print Assumptions Certificate.lower_confidence_family.
Print Assumptions Certificate.gap_ge.
Print Assumptions Certificate.gap_mean.
Print Assumptions Certificate.gap_same.
Print Assumptions Certificate.mm_gap_ge.
Print Assumptions Certificate.certificate_family.
