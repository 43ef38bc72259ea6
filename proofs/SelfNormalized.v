(** Self-normalised importance sampling. *)
Require Import Reals Lra Psatz.
From mathcomp Require Import all_ssreflect.
From OGRPO Require Import Prob Calculus Divergence Importance.

Set Implicit Arguments.
Unset Strict Implicit.
Unset Printing Implicit Defensive.

Open Scope R_scope.

Section Range.
Variables (I : finType).
Implicit Types w f : I -> R.

Definition snis w f := (\rsum_i w i * f i) / \rsum_i w i.

(** The estimate never leaves the range of the values. *)
Theorem snis_between w f a b : (forall i, 0 <= w i) -> 0 < \rsum_i w i ->
  (forall i, a <= f i <= b) -> a <= snis w f <= b.
Proof.
move=> H0 Hs H.
have Hi : 0 < / \rsum_i w i by exact: Rinv_0_lt_compat.
have S c : c = (\rsum_i w i * c) / \rsum_i w i.
  rewrite (rsum_ext (g := fun i => c * w i)) ?rsum_scal; first by field; lra.
  by move=> i; ring.
rewrite /snis {1}(S a) {1}(S b); split; apply: Rmult_le_compat_r; try lra;
  apply: rsum_le => i; apply: Rmult_le_compat_l; (try exact: H0); case: (H i) => //.
Qed.

(** Adding a constant to the values adds it to the estimate. *)
Theorem snis_shift w f c : \rsum_i w i <> 0 -> snis w (fun i => f i + c) = snis w f + c.
Proof.
move=> Hs; rewrite /snis.
rewrite (rsum_ext (g := fun i => w i * f i + c * w i)) => [|i]; last by ring.
by rewrite rsum_add rsum_scal; field.
Qed.

Theorem snis_scale w f c : c <> 0 -> \rsum_i w i <> 0 -> snis (fun i => c * w i) f = snis w f.
Proof.
move=> Hc Hs; rewrite /snis rsum_scal.
rewrite (rsum_ext (g := fun i => c * (w i * f i))) => [|i]; last by ring.
by rewrite rsum_scal; field.
Qed.

End Range.

(** With one sample the estimate ignores the weight: its mean is [J(mu)]. *)
Theorem snis_one_sample (Y : finType) (mu pi f : Y -> R) :
  (forall y, 0 < mu y -> 0 < ratio pi mu y) -> dist mu ->
  E mu (fun y => snis (fun _ : 'I_1 => ratio pi mu y) (fun=> f y)) - E pi f = E mu f - E pi f.
Proof.
move=> H M; congr (_ - _); apply: rsum_ext => y.
case: (M) => /(_ y) [Hy|<-] _; last by rewrite !Rmult_0_l.
rewrite /snis !rsum_const card_ord /=; congr (_ * _); field.
by have := H y Hy; lra.
Qed.

Section Bounds.
Variables (I Y : finType).
Hypothesis n_pos : (0 < #|I|)%N.
Variables (mu pi f : Y -> R).
Hypotheses (Mu : dist mu) (Pi : dist pi) (Ac : abscont pi mu).

Notation n := (nI I).
Notation rho := (ratio pi mu).
Notation En := (E (iid (I := I) mu)).

Definition J := E pi f.
(** The first-order variance of the self-normalised estimator. *)
Definition V := E mu (fun y => rho y * rho y * ((f y - J) * (f y - J))).

(** Any version of the estimator: the defining equation where the weights do not all vanish,
    and anything within the range of [f] where they do. *)
Variable est : {ffun I -> Y} -> R.
Variable osc : R.
Hypothesis est_eq : forall w, est w * mean rho w = mean (fun y => rho y * f y) w.
Hypothesis est_osc : forall w, Rabs (est w - J) <= osc.

Lemma error_split w :
  est w - J = mean (fun y => rho y * (f y - J)) w + (est w - J) * (1 - mean rho w).
Proof.
have -> : mean (fun y => rho y * (f y - J)) w = mean (fun y => rho y * f y) w - J * mean rho w.
  rewrite /mean (rsum_ext (g := fun i => rho (w i) * f (w i) - J * rho (w i))); last first.
    by move=> i; ring.
  by rewrite rsum_sub rsum_scal /Rdiv; ring.
by rewrite -est_eq; ring.
Qed.

Lemma mean_centred_sq : En (fun w => mean (fun y => rho y * (f y - J)) w
    * mean (fun y => rho y * (f y - J)) w) = V / n.
Proof.
have Z : E mu (fun y => rho y * (f y - J)) = 0.
  by rewrite change_measure // E_sub E_const // -/J; ring.
have := mean_mse n_pos (fun y => rho y * (f y - J)) 0 Mu.
rewrite (E_eq _ (g := fun w => mean (fun y => rho y * (f y - J)) w
  * mean (fun y => rho y * (f y - J)) w)); last by move=> w; ring.
move=> ->; rewrite Var_eq // Z /V.
rewrite (E_eq mu (g := fun y => rho y * rho y * ((f y - J) * (f y - J)))); last by move=> y; ring.
by rewrite /Rdiv; ring.
Qed.

Lemma mean_weight_sq : En (fun w => (1 - mean rho w) * (1 - mean rho w)) = chi2 pi mu / n.
Proof.
have := mean_mse n_pos rho 1 Mu; rewrite ratio_variance // E_ratio //.
rewrite (E_eq _ (g := fun w => (1 - mean rho w) * (1 - mean rho w))); last by move=> w; ring.
by move=> ->; rewrite /Rdiv; ring.
Qed.

Lemma iid_prob : dist (iid (I := I) mu).
Proof. exact: iid_dist. Qed.

(** [MSE <= (2/n) (V + osc^2 chi2)]. *)
Theorem snis_mse : En (fun w => (est w - J) * (est w - J))
  <= 2 / n * (V + osc * osc * chi2 pi mu).
Proof.
have n0 := nI_pos n_pos.
have -> : 2 / n * (V + osc * osc * chi2 pi mu)
  = 2 * (V / n) + 2 * (osc * osc) * (chi2 pi mu / n) by field; lra.
rewrite -mean_centred_sq -mean_weight_sq -!E_scal -E_add.
apply: E_le; first exact: iid_prob.
move=> w _; have := error_split w.
move: (mean (fun y => rho y * (f y - J)) w) (1 - mean rho w) => d u He.
have Ho : (est w - J) * (est w - J) <= osc * osc.
  have -> : (est w - J) * (est w - J) = Rabs (est w - J) * Rabs (est w - J).
    by rewrite -Rabs_mult Rabs_pos_eq //; exact: sq_ge0.
  by have := est_osc w; have := Rabs_pos (est w - J); nra.
move: (est w - J) He Ho => e He Ho.
have H1 : e * e <= 2 * (d * d) + 2 * (e * e * (u * u)).
  have {1 2}-> : e = d + e * u by exact: He.
  by have := sq_ge0 (d - e * u); nra.
have := sq_ge0 u; nra.
Qed.

Lemma mean_error : En (fun w => est w - J) = En (fun w => (est w - J) * (1 - mean rho w)).
Proof.
rewrite (E_eq _ (f := fun w => est w - J) (g := fun w => mean (fun y => rho y * (f y - J)) w
  + (est w - J) * (1 - mean rho w))); last exact: error_split.
rewrite E_add mean_unbiased // change_measure // E_sub E_const // -/J.
by rewrite Rminus_diag_eq // Rplus_0_l.
Qed.

(** [bias^2 <= (2/n^2) chi2 (V + osc^2 chi2)]. *)
Theorem snis_bias : En (fun w => est w - J) * En (fun w => est w - J)
  <= 2 / (n * n) * (chi2 pi mu * (V + osc * osc * chi2 pi mu)).
Proof.
have n0 := nI_pos n_pos; rewrite mean_error.
apply: Rle_trans; first by apply: E_cs; exact: iid_prob.
rewrite mean_weight_sq; have := snis_mse; have := chi2_ge0 Pi Mu Ac.
have -> : 2 / (n * n) * (chi2 pi mu * (V + osc * osc * chi2 pi mu))
  = 2 / n * (V + osc * osc * chi2 pi mu) * (chi2 pi mu / n) by field; lra.
move=> Hc Hm; apply: Rmult_le_compat_r => //.
by apply: Rmult_le_pos => //; left; exact: Rinv_0_lt_compat.
Qed.

Theorem snis_bias_sqrt : Rabs (En (fun w => est w - J))
  <= / n * sqrt (2 * chi2 pi mu * (V + osc * osc * chi2 pi mu)).
Proof.
have n0 := nI_pos n_pos; have ni : 0 < / n by exact: Rinv_0_lt_compat.
rewrite -(sqrt_square (/ n)); last by lra.
rewrite -sqrt_mult_alt; last exact: sq_ge0.
rewrite -(sqrt_square (Rabs _)); last exact: Rabs_pos.
apply: sqrt_le_1_alt; rewrite -Rabs_mult Rabs_pos_eq; last exact: sq_ge0.
apply: Rle_trans; first exact: snis_bias.
by right; field; lra.
Qed.

End Bounds.
