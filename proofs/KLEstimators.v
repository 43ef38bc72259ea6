(** The estimators k1, k2, k3 of KL(pi || ref): bias, sign, and their gradients as losses. *)
Require Import Reals Lra Psatz.
From mathcomp Require Import all_ssreflect.
From OGRPO Require Import Prob Calculus Divergence Importance.

Set Implicit Arguments.
Unset Strict Implicit.
Unset Printing Implicit Defensive.

Open Scope R_scope.

(** Functions of [x = ref(y) / pi(y)]. *)
Definition k1 x := - ln x.
Definition k2 x := ln x * ln x / 2.
Definition k3 x := x - 1 - ln x.

Lemma k2_ge0 x : 0 <= k2 x.
Proof. by rewrite /k2; have := sq_ge0 (ln x); lra. Qed.

Lemma k3_ge0 x : 0 < x -> 0 <= k3 x.
Proof. by move=> H; rewrite /k3; have := ln_le_sub1 H; lra. Qed.

Section Estimators.
Variable Y : finType.
Implicit Types (pi ref mu : Y -> R).

Theorem k1_unbiased pi ref : dist pi -> dist ref -> abscont pi ref ->
  E pi (fun y => k1 (ratio ref pi y)) = kl pi ref.
Proof.
move=> [P0 _] [R0 _] A; apply: rsum_ext => y.
case: (P0 y) => [Hp|<-]; last by rewrite !Rmult_0_l.
case: (R0 y) => [Hr|Hr]; last by have := A y (esym Hr); lra.
rewrite /k1 /ratio /Rdiv !ln_mult ?ln_Rinv //; try (exact: Rinv_0_lt_compat).
ring.
Qed.

(** k3 is unbiased when [ref << pi]; without it the missing mass of [ref] is the bias. *)
Theorem k3_mean pi ref : dist pi -> dist ref -> abscont pi ref ->
  E pi (fun y => k3 (ratio ref pi y)) = kl pi ref - (1 - E pi (ratio ref pi)).
Proof.
move=> P R A; rewrite -(k1_unbiased P R A).
rewrite (E_eq _ (g := fun y => k1 (ratio ref pi y) + (ratio ref pi y - 1))); last first.
  by move=> y; rewrite /k3 /k1; ring.
by rewrite E_add E_sub E_const //; ring.
Qed.

Theorem k3_unbiased pi ref : dist pi -> dist ref -> abscont pi ref -> abscont ref pi ->
  E pi (fun y => k3 (ratio ref pi y)) = kl pi ref.
Proof. by move=> P R A B; rewrite k3_mean // E_ratio //; ring. Qed.

(** On samples of another policy the importance weight restores unbiasedness. *)
Theorem k1_weighted pi ref mu : dist pi -> dist ref -> abscont pi ref -> abscont pi mu ->
  E mu (fun y => ratio pi mu y * k1 (ratio ref pi y)) = kl pi ref.
Proof. by move=> P R A B; rewrite change_measure // k1_unbiased. Qed.

Theorem k3_weighted pi ref mu : dist pi -> dist ref -> abscont pi ref -> abscont ref pi ->
  abscont pi mu -> E mu (fun y => ratio pi mu y * k3 (ratio ref pi y)) = kl pi ref.
Proof. by move=> P R A B C; rewrite change_measure // k3_unbiased. Qed.

(** ** Gradients as losses, samples held fixed *)

(** A smooth path of positive distributions, one direction of parameter space. *)
Variables (p : R -> Y -> R) (d ref : Y -> R).
Hypothesis p_pos : forall t y, 0 < p t y.
Hypothesis p_sum : forall t, \rsum_y p t y = 1.
Hypothesis p_der : forall y, D (fun t => p t y) 0 (d y).
Hypothesis ref_pos : forall y, 0 < ref y.
Hypothesis ref_sum : \rsum_y ref y = 1.

Lemma d_sum : \rsum_y d y = 0.
Proof.
have H : D (fun=> 1) 0 (\rsum_y d y).
  apply: (derivable_pt_lim_ext (fun t => \rsum_y p t y)) => //.
  exact: (derivable_rsum p_der).
exact: (uniqueness_limite _ _ _ _ H (D_const 1 0)).
Qed.

Lemma D_lnp y : D (fun t => ln (p t y)) 0 (d y / p 0 y).
Proof. exact: D_ln. Qed.

Lemma ln_quot t y : ln (ref y / p t y) = ln (ref y) - ln (p t y).
Proof.
by rewrite /Rdiv ln_mult ?ln_Rinv //; exact: Rinv_0_lt_compat.
Qed.

(** The expected gradient of k1 is zero: as a loss it does nothing. *)
Theorem k1_gradient : D (fun t => E (p 0) (fun y => k1 (ratio ref (p t) y))) 0 0.
Proof.
apply: (D_eq (l := \rsum_y p 0 y * (d y / p 0 y))); last first.
  by rewrite -[RHS]d_sum; apply: rsum_ext => y; field; have := p_pos 0 y; lra.
apply: derivable_rsum => y.
apply: (derivable_pt_lim_ext (fun t => p 0 y * (ln (p t y) - ln (ref y)))).
  by move=> t; rewrite /k1 /ratio ln_quot; ring.
apply: (D_eq (D_mult (D_const (p 0 y) 0) (D_minus (D_lnp y) (D_const (ln (ref y)) 0)))).
ring.
Qed.

Lemma kl_gradient : D (fun t => kl (p t) ref) 0 (\rsum_y d y * (ln (p 0 y) - ln (ref y))).
Proof.
apply: (D_eq (l := \rsum_y (d y * (ln (p 0 y) - ln (ref y)) + d y))); last first.
  by rewrite rsum_add d_sum; ring.
apply: derivable_rsum => y.
apply: (derivable_pt_lim_ext (fun t => p t y * (ln (p t y) - ln (ref y)))).
  move=> t; rewrite /ratio /Rdiv ln_mult ?ln_Rinv //; exact: Rinv_0_lt_compat.
apply: (D_eq (D_mult (p_der y) (D_minus (D_lnp y) (D_const (ln (ref y)) 0)))).
by field; have := p_pos 0 y; lra.
Qed.

(** The gradient of k2 is that of KL(pi || ref). *)
Theorem k2_gradient : exists g,
  D (fun t => E (p 0) (fun y => k2 (ratio ref (p t) y))) 0 g /\ D (fun t => kl (p t) ref) 0 g.
Proof.
exists (\rsum_y d y * (ln (p 0 y) - ln (ref y))); split; last exact: kl_gradient.
apply: derivable_rsum => y.
apply: (derivable_pt_lim_ext (fun t => p 0 y / 2 *
  ((ln (p t y) - ln (ref y)) * (ln (p t y) - ln (ref y))))).
  by move=> t; rewrite /k2 /ratio ln_quot; field.
have H : D (fun t => ln (p t y) - ln (ref y)) 0 (d y / p 0 y - 0).
  by apply: D_minus; [exact: D_lnp|exact: D_const].
apply: (D_eq (D_mult (D_const (p 0 y / 2) 0) (D_mult H H))).
by field; have := p_pos 0 y; lra.
Qed.

(** The gradient of k3 is that of the reverse divergence KL(ref || pi). *)
Theorem k3_gradient : exists g,
  D (fun t => E (p 0) (fun y => k3 (ratio ref (p t) y))) 0 g /\ D (fun t => kl ref (p t)) 0 g.
Proof.
exists (- \rsum_y ref y * (d y / p 0 y)); split; last first.
  apply: (D_eq (l := \rsum_y (- (ref y * (d y / p 0 y))))); last by rewrite rsum_opp.
  apply: derivable_rsum => y.
  apply: (derivable_pt_lim_ext (fun t => ref y * (ln (ref y) - ln (p t y)))).
    by move=> t; rewrite /ratio ln_quot.
  apply: (D_eq (D_mult (D_const (ref y) 0) (D_minus (D_const (ln (ref y)) 0) (D_lnp y)))).
  by field; have := p_pos 0 y; lra.
apply: (D_eq (l := \rsum_y (d y - ref y * (d y / p 0 y)))); last first.
  by rewrite rsum_sub d_sum; ring.
apply: derivable_rsum => y.
apply: (derivable_pt_lim_ext (fun t => p 0 y *
  (ref y * / p t y - 1 - (ln (ref y) - ln (p t y))))).
  by move=> t; rewrite /k3 /ratio ln_quot.
have Hp : p 0 y <> 0 by have := p_pos 0 y; lra.
apply: (D_eq (D_mult (D_const (p 0 y) 0) (D_minus (D_minus
  (D_mult (D_const (ref y) 0) (D_inv (p_der y) Hp)) (D_const 1 0))
  (D_minus (D_const (ln (ref y)) 0) (D_lnp y))))).
by field.
Qed.

End Estimators.
