(** The share of completions that survives a cap on the product of their ratios: one-sided
    Chebyshev, of one variable and of the sum of independent log-ratios. *)
Require Import Reals Lra Psatz.
From mathcomp Require Import all_ssreflect.
From OGRPO Require Import Prob.

Set Implicit Arguments.
Unset Strict Implicit.
Unset Printing Implicit Defensive.

Open Scope R_scope.

Section Cantelli.
Variable Y : finType.

Theorem cantelli (mu f : Y -> R) c : dist mu -> E mu f < c ->
  Pr mu (fun y => Rltb c (f y)) <= Var mu f / (Var mu f + (c - E mu f) * (c - E mu f)).
Proof.
move=> D Hc; set m := E mu f; set v := Var mu f; set t := c - m.
have Ht : 0 < t by rewrite /t /m; lra.
have Hv : 0 <= v by exact: Var_ge0.
pose u := v / t.
have Hu : 0 <= u by apply: Rmult_le_pos; [lra|apply: Rlt_le; exact: Rinv_0_lt_compat].
have H : (t + u) * (t + u) * Pr mu (fun y => Rltb c (f y))
         <= E mu (fun y => (f y - m + u) * (f y - m + u)).
  apply: markov => [//|y|y /RltbP Hy]; first exact: sq_ge0.
  have : t < f y - m by rewrite /t; lra.
  by nra.
have Hm : E mu (fun y => f y - m) = 0.
  by rewrite (E_sub mu f (fun=> m)) E_const // /m; lra.
have Hs : E mu (fun y => (f y - m + u) * (f y - m + u)) = v + u * u.
  rewrite (E_eq _ (g := fun y => (f y - m) * (f y - m) + (2 * u * (f y - m) + u * u))); last first.
    by move=> y; ring.
  rewrite E_add (E_add mu (fun y => 2 * u * (f y - m)) (fun=> u * u)) E_scal Hm E_const //.
  by rewrite /v /Var -/m; ring.
rewrite Hs in H.
have Hq : 0 < (t + u) * (t + u) by nra.
have -> : v / (v + t * t) = (v + u * u) / ((t + u) * (t + u)).
  by rewrite /u; field; repeat split; nra.
apply: (Rmult_le_reg_l _ _ _ Hq).
have -> : (t + u) * (t + u) * ((v + u * u) / ((t + u) * (t + u))) = v + u * u by field; nra.
exact: H.
Qed.

End Cantelli.

Section Tokens.
Variables (I Y : finType).
Variables (mu : I -> Y -> R) (d : I -> Y -> R) (m s2 : R).
Hypothesis mu_dist : forall i, dist (mu i).
Hypothesis d_mean : forall i, E (mu i) (d i) = m.
Hypothesis d_var : forall i, Var (mu i) (d i) = s2.

(** The log-ratio of a completion, [d i] that of its token [i]. *)
Definition sum_log_ratio (w : {ffun I -> Y}) := \rsum_i d i (w i).

Theorem sum_mean : E (prodd mu) sum_log_ratio = INR #|I| * m.
Proof.
rewrite /sum_log_ratio E_sum (rsum_ext (g := fun=> m)) ?rsum_const // => i.
by rewrite E_coord.
Qed.

Theorem sum_variance : Var (prodd mu) sum_log_ratio = INR #|I| * s2.
Proof.
rewrite /Var sum_mean.
rewrite (E_eq _ (g := fun w : {ffun I -> Y} => (\rsum_i (d i (w i) - m)) * (\rsum_i (d i (w i) - m)))); last first.
  by move=> w; rewrite rsum_sub rsum_const.
rewrite (E_sum_sq (f := fun i y => d i y - m)) //.
  rewrite (rsum_ext (g := fun=> s2)) ?rsum_const // => i.
  by rewrite -(d_var i) /Var d_mean.
by move=> i; rewrite (E_sub (mu i) (d i) (fun=> m)) E_const // d_mean; lra.
Qed.

(** At least this share of completions has a product of ratios of [exp c] or less. *)
Theorem sequence_survival c : INR #|I| * m < c ->
  1 - INR #|I| * s2 / (INR #|I| * s2 + (c - INR #|I| * m) * (c - INR #|I| * m))
  <= Pr (prodd mu) (fun w => Rleb (sum_log_ratio w) c).
Proof.
move=> Hc; have D := prodd_dist mu_dist.
have := @cantelli _ (prodd mu) sum_log_ratio c D; rewrite sum_mean sum_variance => /(_ Hc).
have -> : Pr (prodd mu) (fun w => Rleb (sum_log_ratio w) c)
          = 1 - Pr (prodd mu) (fun w => Rltb c (sum_log_ratio w)).
  rewrite /Pr -{2}(E_const 1 D) -(E_sub (prodd mu) (fun=> 1)).
  apply: E_eq => w; case: RlebP; case: RltbP => *; lra.
lra.
Qed.

End Tokens.
