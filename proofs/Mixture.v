(** Buffers that mix behaviour policies, and when stale samples help. *)
Require Import Reals Lra Psatz.
From mathcomp Require Import all_ssreflect.
From OGRPO Require Import Prob Calculus Divergence Importance.

Set Implicit Arguments.
Unset Strict Implicit.
Unset Printing Implicit Defensive.

Open Scope R_scope.

Section Mixture.
Variables (K Y : finType).
Implicit Types (q : K -> R) (mu : K -> Y -> R) (pi : Y -> R).

Definition mixture q mu y := E q (fun k => mu k y).

Lemma mixture_dist q mu : dist q -> (forall k, dist (mu k)) -> dist (mixture q mu).
Proof.
move=> Q M; split=> [y|]; first by apply: E_ge0 => // k _; case: (M k).
rewrite /mixture -(E_sum q) -(E_const 1 Q); apply: E_eq => k.
by case: (M k).
Qed.

(** [E_mix[f^2 / mix^2]] is convex in the mixture:
    [1 + chi2(pi || sum q_k mu_k) <= sum q_k (1 + chi2_k)]. *)
Theorem mixture_m2 q mu pi : dist q -> (forall k, dist (mu k)) -> dist pi ->
  (forall k, abscont pi (mu k)) ->
  m2 pi (mixture q mu) <= E q (fun k => m2 pi (mu k)).
Proof.
move=> Q M P A; case: (Q) => Q0 Q1; case: (P) => P0 _.
rewrite /m2 {1}/E [X in _ <= X](_ : _ = \rsum_y E q (fun k =>
  mu k y * (ratio pi (mu k) y * ratio pi (mu k) y))); last by rewrite -E_sum.
apply: rsum_le => y; case: (Req_dec (pi y) 0) => [p0|pn].
  rewrite /ratio p0 /Rdiv !Rmult_0_l Rmult_0_r; apply: E_ge0 => // k _.
  by rewrite !Rmult_0_l Rmult_0_r; lra.
have pp : 0 < pi y by have := P0 y; lra.
have mp k : 0 < mu k y.
  by case: (M k) => /(_ y) [//|H] _; have := A k y (esym H).
set m := mixture q mu y.
have m0 : 0 < m.
  have : 0 <= m by apply: E_ge0 => // k _; exact: Rlt_le.
  case=> // H0; have Z k : q k = 0.
    have H k' : 0 <= q k' * mu k' y by apply: Rmult_le_pos; [exact: Q0|exact: Rlt_le].
    by have := rsum_eq0 H (esym H0) k => /Rmult_integral [//|]; have := mp k; lra.
  by move: Q1; rewrite rsum_zero //; lra.
have -> : m * (ratio pi (mixture q mu) y * ratio pi (mixture q mu) y) = pi y * pi y * / m.
  by rewrite /ratio -/m; field; lra.
rewrite (E_eq q (g := fun k => pi y * pi y * / mu k y)); last first.
  by move=> k; rewrite /ratio; field; have := mp k; lra.
rewrite E_scal; apply: Rmult_le_compat_l; first exact: sq_ge0.
have -> : / m = E q (fun k => 2 * / m - mu k y * (/ m * / m)).
  rewrite E_sub E_const // (E_eq q (g := fun k => / m * / m * mu k y)); last by move=> k; ring.
  by rewrite E_scal -/(mixture q mu y) -/m; field; lra.
apply: E_le => // k _; have Hk := mp k.
have H2 := sq_ge0 (/ m - / mu k y).
have Hi : 0 < mu k y * / mu k y by rewrite Rinv_r; lra.
have E1 : mu k y * / mu k y = 1 by rewrite Rinv_r; lra.
have : 0 <= mu k y * ((/ m - / mu k y) * (/ m - / mu k y)) by apply: Rmult_le_pos; lra.
move: (/ m) (/ mu k y) E1 => a b E1.
have -> : mu k y * ((a - b) * (a - b)) = mu k y * (a * a) - 2 * a * (mu k y * b)
  + b * (mu k y * b) by ring.
by rewrite E1; lra.
Qed.

Theorem mixture_chi2 q mu pi : dist q -> (forall k, dist (mu k)) -> dist pi ->
  (forall k, abscont pi (mu k)) ->
  chi2 pi (mixture q mu) <= E q (fun k => chi2 pi (mu k)).
Proof.
move=> Q M P A; have := mixture_m2 Q M P A.
by rewrite /chi2 (E_sub q) (E_const _ Q); lra.
Qed.

End Mixture.

(** ** Staleness: [n0] fresh samples of variance [v0], [n1] stale ones of variance [v1] *)

Definition plain_variance n0 n1 v0 v1 := (n0 * v0 + n1 * v1) / ((n0 + n1) * (n0 + n1)).

(** Adding the stale samples to the plain mean helps iff [v1 / v0 < 2 + n1 / n0]. *)
Theorem staleness_iff n0 n1 v0 v1 : 0 < n0 -> 0 < n1 -> 0 < v0 ->
  plain_variance n0 n1 v0 v1 < v0 / n0 <-> v1 / v0 < 2 + n1 / n0.
Proof.
move=> H0 H1 Hv; rewrite /plain_variance.
have N : 0 < (n0 + n1) * (n0 + n1) by nra.
have E1 : v0 / n0 - (n0 * v0 + n1 * v1) / ((n0 + n1) * (n0 + n1))
  = (n1 * v0 / ((n0 + n1) * (n0 + n1))) * (2 + n1 / n0 - v1 / v0) by field; lra.
have C : 0 < n1 * v0 / ((n0 + n1) * (n0 + n1)) by apply: Rdiv_lt_0_compat => //; nra.
move: (n1 * v0 / _) E1 C => c E1 C; split=> H; last first.
  have : 0 < c * (2 + n1 / n0 - v1 / v0) by apply: Rmult_lt_0_compat; lra.
  by lra.
case: (Rlt_le_dec (v1 / v0) (2 + n1 / n0)) => // H'.
have : 0 <= c * (v1 / v0 - (2 + n1 / n0)) by apply: Rmult_le_pos; lra.
by lra.
Qed.

(** Inverse-variance weighting never hurts. *)
Theorem inverse_variance_helps n0 n1 v0 v1 : 0 < n0 -> 0 <= n1 -> 0 < v0 -> 0 < v1 ->
  / (n0 / v0 + n1 / v1) <= v0 / n0.
Proof.
move=> H0 H1 Hv Hw; have -> : v0 / n0 = / (n0 / v0) by field; lra.
apply: Rinv_le_contravar; first exact: Rdiv_lt_0_compat.
have : 0 <= n1 / v1 by apply: Rmult_le_pos => //; left; exact: Rinv_0_lt_compat.
lra.
Qed.

(** The variance of the plain mean itself, from independent samples of two laws. *)
Theorem pooled_variance (I Y : finType) (mu : I -> Y -> R) (f : I -> Y -> R) :
  (forall i, dist (mu i)) -> (forall i, E (mu i) (f i) = 0) ->
  E (prodd mu) (fun w => (\rsum_i f i (w i)) * (\rsum_i f i (w i)))
  = \rsum_i E (mu i) (fun y => f i y * f i y).
Proof. exact: E_sum_sq. Qed.

(** ** Independent tokens: second moments multiply *)
Theorem tokens_m2 (I Y : finType) (pi mu : I -> Y -> R) :
  m2 (prodd pi) (prodd mu) = \rprod_i m2 (pi i) (mu i).
Proof.
rewrite /m2 -E_prod; apply: E_eq => w; rewrite /ratio.
have K : prodd pi w / prodd mu w = \rprod_i (pi i (w i) / mu i (w i)).
  rewrite /prodd; apply: (big_ind3 (fun a b c => a / b = c)) => [|a1 b1 c1 a2 b2 c2 <- <-|//].
    by field.
  by rewrite /Rdiv Rinv_mult; ring.
by rewrite K -big_split.
Qed.

Theorem tokens_min (I Y : finType) (pi mu : I -> Y -> R) :
  (forall i, dist (pi i)) -> (forall i, dist (mu i)) -> (forall i, abscont (pi i) (mu i)) ->
  E (prodd mu) (fun w => \rprod_i Rmin 1 (ratio (pi i) (mu i) (w i)))
  = \rprod_i (1 - tv (pi i) (mu i)).
Proof.
move=> P M A; rewrite (E_prod mu (fun i y => Rmin 1 (ratio (pi i) (mu i) y))).
by apply: eq_bigr => i _; rewrite tv_min.
Qed.

(** The length-normalised ratio, each sequence with the length [T y] of its own. With one length
    for all it loses mass: the bound is 1. *)
Theorem normalised_ratio_mass (Y : finType) (pi mu T : Y -> R) : dist pi -> dist mu ->
  (forall y, 0 < mu y -> 0 < pi y) -> (forall y, 1 <= T y) ->
  E mu (fun y => exp (/ T y * ln (ratio pi mu y)))
  <= 1 + E pi (fun y => / T y) - E mu (fun y => / T y).
Proof.
move=> P M H HT; have T0 y : 0 < / T y by apply: Rinv_0_lt_compat; have := HT y; lra.
have T1 y : / T y <= 1 by rewrite -[X in _ <= X]Rinv_1; apply: Rinv_le_contravar; have := HT y; lra.
have C := change_measure_le P M (fun y => Rlt_le _ _ (T0 y)).
apply: (Rle_trans _ (E mu (fun y => 1 + ratio pi mu y * / T y - / T y))); last first.
  by rewrite E_sub E_add E_const //; lra.
apply: E_le => // y Hy; have Hr : 0 < ratio pi mu y by apply: Rdiv_lt_0_compat; auto.
have Hl : 0 <= / T y <= 1 by have := T0 y; have := T1 y; lra.
by have := power_le Hl Hr; lra.
Qed.

(** With unlike lengths it may gain mass: lengths 1 and 2, from a fair coin to (.8, .2). *)
Theorem normalised_ratio_gains :
  1.1 < E (bern (/ 2)) (fun b => exp (/ (if b then 1 else 2) * ln (ratio (bern (8/10)) (bern (/ 2)) b))).
Proof.
rewrite E_bern /ratio /bern Rinv_1 Rmult_1_l exp_ln; last by lra.
have -> : (1 - 8 / 10) / (1 - / 2) = 4 / 10 by field.
have H4 : 0 < 4 / 10 by lra.
have -> : exp (/ 2 * ln (4 / 10)) = sqrt (4 / 10) by rewrite -Rpower_sqrt.
have : 6 / 10 < sqrt (4 / 10).
  rewrite -[X in X < _](sqrt_Rsqr (6 / 10)); last by lra.
  by apply: sqrt_lt_1; rewrite /Rsqr; lra.
lra.
Qed.
