(** Drafts of one policy as draws of another: what is kept, what follows a rejection, and why it
    is not a draw from the policy itself. *)
Require Import Reals Lra Psatz.
From mathcomp Require Import all_ssreflect.
From OGRPO Require Import Prob Divergence.

Set Implicit Arguments.
Unset Strict Implicit.
Unset Printing Implicit Defensive.

Open Scope R_scope.

Section Drafts.
Variable Y : finType.
Implicit Types p q : Y -> R.

(** A draft [y] of [q] is kept with the chance [Rmin 1 (p y / q y)]. *)
Definition rejected p q := 1 - E q (fun y => Rmin 1 (ratio p q y)).
Definition surplus p q y := Rmax (p y - q y) 0.
Definition redrawn p q y := surplus p q y / \rsum_z surplus p q z.

Lemma kept_mass p q y : dist p -> dist q -> q y * Rmin 1 (ratio p q y) = p y - surplus p q y.
Proof.
case=> P0 _ [Q0 _]; rewrite /ratio /surplus.
case: (Q0 y) => [Hq|<-]; last by rewrite Rmax_left; have := P0 y; lra.
have E1 : q y * (p y / q y) = p y by field; lra.
by rewrite /Rmin /Rmax; case: Rle_dec; case: Rle_dec => *; nra.
Qed.

Lemma rejected_surplus p q : dist p -> dist q -> rejected p q = \rsum_y surplus p q y.
Proof.
move=> P Q; rewrite /rejected /E (rsum_ext (g := fun y => p y - surplus p q y)).
  by rewrite rsum_sub; case: P => _ ->; lra.
by move=> y; exact: kept_mass.
Qed.

(** What comes out has the law of [p], whatever [q]. For [p = q] nothing is rejected, and what
    [redrawn] is (0/0) does not matter. *)
Theorem draft_law p q y : dist p -> dist q ->
  q y * Rmin 1 (ratio p q y) + rejected p q * redrawn p q y = p y.
Proof.
move=> P Q; rewrite kept_mass // rejected_surplus // /redrawn.
have X0 z : 0 <= surplus p q z by exact: Rmax_r.
case: (Req_dec (\rsum_z surplus p q z) 0) => [S|S]; last by field.
by rewrite (rsum_eq0 X0 S y) S; lra.
Qed.

Theorem same_never_rejected p : dist p -> rejected p p = 0.
Proof.
move=> P; rewrite rejected_surplus //; apply: rsum_zero => y.
by rewrite /surplus Rmax_left; lra.
Qed.

End Drafts.

(** Redrawing from [p] after a rejection: p = (.5, .5), q = (1, 0) give .75. *)
Theorem redraw_is_biased : let p := fun _ : bool => / 2 in let q := fun b : bool => if b then 1 else 0 in
  dist p /\ dist q /\ q true * Rmin 1 (ratio p q true) + rejected p q * p true = 3 / 4.
Proof.
move=> p q; split; [|split]; rewrite /p /q.
- by split=> [y|]; rewrite ?rsum_bool; lra.
- by split=> [[]|]; rewrite ?rsum_bool; lra.
rewrite /rejected /E rsum_bool /ratio Rmin_right; lra.
Qed.
