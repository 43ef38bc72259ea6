(** Importance weights: unbiasedness, variance, truncation, effective sample size. *)
Require Import Reals Lra Psatz.
From mathcomp Require Import all_ssreflect.
From OGRPO Require Import Prob Calculus Divergence.

Set Implicit Arguments.
Unset Strict Implicit.
Unset Printing Implicit Defensive.

Open Scope R_scope.

Definition clip x lo hi := Rmin (Rmax x lo) hi.
Definition pos x := Rmax x 0.

Lemma pos_ge0 x : 0 <= pos x.
Proof. exact: Rmax_r. Qed.

Lemma min_pos x t : Rmin x t = x - pos (x - t).
Proof. by rewrite /pos /Rmin /Rmax; case: Rle_dec; case: Rle_dec; lra. Qed.

Lemma clip_pos x lo hi : lo <= hi -> clip x lo hi = x + pos (lo - x) - pos (x - hi).
Proof.
by rewrite /clip /pos /Rmin /Rmax; case: Rle_dec; case: Rle_dec; case: Rle_dec;
   case: Rle_dec; lra.
Qed.

Lemma pos_le_sq x t : 0 < t -> 0 <= x -> pos (x - t) <= x * x / (4 * t).
Proof.
move=> Ht Hx; apply: (Rmult_le_reg_r (4 * t)); first by lra.
have -> : x * x / (4 * t) * (4 * t) = x * x by field; lra.
rewrite /pos /Rmax; case: Rle_dec => H; first by nra.
by have := sq_ge0 (x - 2 * t); nra.
Qed.

Section OneSample.
Variable Y : finType.
Implicit Types (mu pi f : Y -> R) (y : Y).

Notation rho := (ratio _ _).

Theorem is_unbiased pi mu f : abscont pi mu ->
  E mu (fun y => ratio pi mu y * f y) = E pi f.
Proof. exact: change_measure. Qed.

(** Without support the estimator sees only the supported part. *)
Theorem is_unsupported pi mu f :
  E mu (fun y => ratio pi mu y * f y) = \rsum_y (if Rltb 0 (Rabs (mu y)) then pi y * f y else 0).
Proof.
apply: rsum_ext => y; case: RltbP => H.
  have M : mu y <> 0 by move=> H0; rewrite H0 Rabs_R0 in H; lra.
  by rewrite /ratio; field.
have -> : mu y = 0 by case: (Req_dec (mu y) 0) => // /Rabs_pos_lt.
by rewrite Rmult_0_l.
Qed.

(** [Var(rho f) = E_mu[rho^2 f^2] - J^2]; [f = 1] gives chi-square. *)
Theorem is_variance pi mu f : dist mu -> abscont pi mu ->
  Var mu (fun y => ratio pi mu y * f y)
  = E mu (fun y => ratio pi mu y * ratio pi mu y * (f y * f y)) - E pi f * E pi f.
Proof.
move=> M A; rewrite Var_eq // change_measure //; congr (_ - _).
by apply: E_eq => y; ring.
Qed.

Theorem ratio_variance pi mu : dist pi -> dist mu -> abscont pi mu ->
  Var mu (ratio pi mu) = chi2 pi mu.
Proof. by move=> P M A; rewrite Var_eq // E_ratio // /chi2 /m2 Rmult_1_l. Qed.

(** Truncation: bias equals minus the tail. *)
Theorem truncation_bias pi mu f t : abscont pi mu ->
  E mu (fun y => Rmin (ratio pi mu y) t * f y) - E pi f
  = - E mu (fun y => pos (ratio pi mu y - t) * f y).
Proof.
move=> A; rewrite -(change_measure _ A) -E_sub -E_opp; apply: E_eq => y.
by rewrite min_pos; ring.
Qed.

Theorem truncation_bias_le0 pi mu f t : dist mu -> abscont pi mu -> (forall y, 0 <= f y) ->
  E mu (fun y => Rmin (ratio pi mu y) t * f y) <= E pi f.
Proof.
move=> M A H; have := truncation_bias f t A.
suff : 0 <= E mu (fun y => pos (ratio pi mu y - t) * f y) by lra.
by apply: E_ge0 => // y _; apply: Rmult_le_pos; [exact: pos_ge0|exact: H].
Qed.

Lemma tail_le pi mu t : dist pi -> dist mu -> 0 < t ->
  E mu (fun y => pos (ratio pi mu y - t)) <= m2 pi mu / (4 * t).
Proof.
move=> P M Ht; rewrite /Rdiv Rmult_comm /m2 -E_scal; apply: E_le => // y Hy.
by rewrite Rmult_comm; apply: pos_le_sq => //; exact: ratio_ge0.
Qed.

Theorem truncation_bias_bound pi mu f t B : dist pi -> dist mu -> abscont pi mu -> 0 < t ->
  (forall y, Rabs (f y) <= B) ->
  Rabs (E mu (fun y => Rmin (ratio pi mu y) t * f y) - E pi f)
  <= B * E mu (fun y => pos (ratio pi mu y - t))
  /\ B * E mu (fun y => pos (ratio pi mu y - t)) <= B * (m2 pi mu / (4 * t)).
Proof.
move=> P M A Ht H; split.
  rewrite truncation_bias // Rabs_Ropp; apply: Rle_trans; first exact: E_abs.
  rewrite -E_scal; apply: E_le => // y _.
  rewrite Rabs_mult (Rabs_pos_eq _ (pos_ge0 _)) Rmult_comm.
  by apply: Rmult_le_compat_r; [exact: pos_ge0|exact: H].
case: (M) => _ M1.
have HB : 0 <= B.
  case: (Rle_lt_dec 0 B) => // HB; suff : \rsum_y mu y = 0 by lra.
  apply: rsum_zero => y.
  by have := H y; have := Rabs_pos (f y); lra.
by apply: Rmult_le_compat_l => //; exact: tail_le.
Qed.

Theorem two_sided_clip_bias pi mu f lo hi : abscont pi mu -> lo <= hi ->
  E mu (fun y => clip (ratio pi mu y) lo hi * f y) - E pi f
  = E mu (fun y => pos (lo - ratio pi mu y) * f y)
    - E mu (fun y => pos (ratio pi mu y - hi) * f y).
Proof.
move=> A H; rewrite -(change_measure _ A) -!E_sub; apply: E_eq => y.
by rewrite clip_pos //; ring.
Qed.

End OneSample.

Section NSamples.
Variables (I Y : finType).
Hypothesis n_pos : (0 < #|I|)%N.
Implicit Types (mu pi f : Y -> R).

Theorem is_unbiased_n pi mu f : dist mu -> abscont pi mu ->
  E (iid (I := I) mu) (mean (fun y => ratio pi mu y * f y)) = E pi f.
Proof. by move=> M A; rewrite mean_unbiased // change_measure. Qed.

Theorem is_mse pi mu f : dist mu -> abscont pi mu ->
  E (iid (I := I) mu) (fun w =>
    (mean (fun y => ratio pi mu y * f y) w - E pi f)
    * (mean (fun y => ratio pi mu y * f y) w - E pi f))
  = (E mu (fun y => ratio pi mu y * ratio pi mu y * (f y * f y)) - E pi f * E pi f) / nI I.
Proof.
by move=> M A; rewrite mean_mse // change_measure // is_variance //; ring.
Qed.

(** Sample complexity: [n >= (1 + chi2) / eta^2] suffices for a root mean squared error [eta]. *)
Theorem is_sample_complexity pi mu f eta : dist pi -> dist mu -> abscont pi mu ->
  (forall y, 0 <= f y <= 1) -> 0 < eta -> (1 + chi2 pi mu) / (eta * eta) <= nI I ->
  E (iid (I := I) mu) (fun w =>
    (mean (fun y => ratio pi mu y * f y) w - E pi f)
    * (mean (fun y => ratio pi mu y * f y) w - E pi f)) <= eta * eta.
Proof.
move=> P M A H He Hn; rewrite is_mse //; have n0 := nI_pos n_pos.
have HM : E mu (fun y => ratio pi mu y * ratio pi mu y * (f y * f y)) <= 1 + chi2 pi mu.
  rewrite /chi2 /m2 (_ : 1 + (_ - 1) = E mu (fun y => ratio pi mu y * ratio pi mu y)); last by ring.
  apply: E_le => // y _; have := sq_ge0 (ratio pi mu y); have := H y.
  move: (ratio pi mu y * _) => s Hf Hs; have : f y * f y <= 1 by nra.
  by nra.
have e2 : 0 < eta * eta by nra.
apply: (Rmult_le_reg_r (nI I)) => //; rewrite /Rdiv Rmult_assoc Rinv_l; last by lra.
have : (1 + chi2 pi mu) / (eta * eta) * (eta * eta) <= nI I * (eta * eta).
  by apply: Rmult_le_compat_r; lra.
have -> : (1 + chi2 pi mu) / (eta * eta) * (eta * eta) = 1 + chi2 pi mu by field; lra.
by have := sq_ge0 (E pi f); lra.
Qed.

(** Truncated importance sampling: the bias/variance bound behind a threshold of order sqrt n. *)
Theorem truncated_mse pi mu f t B : dist pi -> dist mu -> abscont pi mu -> 0 < t ->
  (forall y, Rabs (f y) <= B) ->
  E (iid (I := I) mu) (fun w =>
    (mean (fun y => Rmin (ratio pi mu y) t * f y) w - E pi f)
    * (mean (fun y => Rmin (ratio pi mu y) t * f y) w - E pi f))
  <= B * B * t / nI I + (B * (m2 pi mu / (4 * t))) * (B * (m2 pi mu / (4 * t))).
Proof.
move=> P M A Ht H; rewrite mean_mse //; have n0 := nI_pos n_pos.
apply: Rplus_le_compat; last first.
  have [H1 H2] := truncation_bias_bound P M A Ht H.
  set b := _ - _ in H1 *; set c := B * (m2 pi mu / (4 * t)) in H2 *.
  have -> : b * b = Rabs b * Rabs b by rewrite -Rabs_mult Rabs_pos_eq //; exact: sq_ge0.
  by have := Rabs_pos b; nra.
apply: Rmult_le_compat_r; first by left; exact: Rinv_0_lt_compat.
rewrite Var_eq //; have := sq_ge0 (E mu (fun y => Rmin (ratio pi mu y) t * f y)).
suff : E mu (fun y => Rmin (ratio pi mu y) t * f y * (Rmin (ratio pi mu y) t * f y))
  <= B * B * t by lra.
apply: (Rle_trans _ (E mu (fun y => B * B * t * ratio pi mu y))); last first.
  by rewrite E_scal E_ratio //; lra.
apply: E_le => // y Hy; have r0 := ratio_ge0 P M Hy.
have Hf : f y * f y <= B * B.
  have -> : f y * f y = Rabs (f y) * Rabs (f y).
    by rewrite -Rabs_mult Rabs_pos_eq //; exact: sq_ge0.
  by have := Rabs_pos (f y); have := H y; nra.
move: (ratio pi mu y) r0 => r r0.
have Hr : 0 <= Rmin r t * Rmin r t <= t * r.
  by rewrite /Rmin; case: Rle_dec => H1; nra.
have -> : Rmin r t * f y * (Rmin r t * f y) = (f y * f y) * (Rmin r t * Rmin r t) by ring.
have -> : B * B * t * r = B * B * (t * r) by ring.
by apply: Rmult_le_compat; try lra; exact: sq_ge0.
Qed.

End NSamples.

(** ** Effective sample size *)
Section ESS.
Variable I : finType.
Implicit Types w : I -> R.

Definition ess w := (\rsum_i w i) * (\rsum_i w i) / \rsum_i w i * w i.

Lemma sum_sq_pos w : 0 < \rsum_i w i -> 0 < \rsum_i w i * w i.
Proof.
move=> H; have : 0 <= \rsum_i w i * w i by apply: rsum_ge0 => i; exact: sq_ge0.
case=> // H0; suff : \rsum_i w i = 0 by lra.
apply: rsum_zero => i.
have := rsum_eq0 (fun i => sq_ge0 (w i)) (esym H0) i; nra.
Qed.

Lemma cross_terms w : (\rsum_i w i) * (\rsum_i w i) - \rsum_i w i * w i
  = \rsum_i \rsum_j (if i != j then w i * w j else 0).
Proof.
rewrite rsum_sqr -rsum_sub; apply: rsum_ext => i.
rewrite (rsum_D1 i) [in RHS](rsum_D1 i) eqxx /=.
have -> : \rsum_(j | j != i) (if i != j then w i * w j else 0) = \rsum_(j | j != i) w i * w j.
  by apply: eq_bigr => j Hj; rewrite eq_sym Hj.
ring.
Qed.

Theorem ess_ge1 w : (forall i, 0 <= w i) -> 0 < \rsum_i w i -> 1 <= ess w.
Proof.
move=> H0 /sum_sq_pos Hs; apply: (Rmult_le_reg_r (\rsum_i w i * w i)) => //.
rewrite /ess /Rdiv Rmult_assoc Rinv_l; last by lra.
suff : 0 <= (\rsum_i w i) * (\rsum_i w i) - \rsum_i w i * w i by lra.
rewrite cross_terms; apply: rsum_ge0 => i; apply: rsum_ge0 => j.
by case: (i != j); [have := H0 i; have := H0 j; nra|lra].
Qed.

(** ESS is one exactly when no two weights are both non-zero. *)
Theorem ess_eq1 w : (forall i, 0 <= w i) -> 0 < \rsum_i w i ->
  ess w = 1 <-> (forall i j, i != j -> w i * w j = 0).
Proof.
move=> H0 /sum_sq_pos Hs.
have K : ess w = 1 <-> (\rsum_i w i) * (\rsum_i w i) - \rsum_i w i * w i = 0.
  rewrite /ess; split=> [H|H].
    have : (\rsum_i w i) * (\rsum_i w i) / (\rsum_i w i * w i) * (\rsum_i w i * w i)
      = \rsum_i w i * w i by rewrite H; ring.
    by rewrite /Rdiv Rmult_assoc Rinv_l; lra.
  have -> : (\rsum_i w i) * (\rsum_i w i) = \rsum_i w i * w i by lra.
  by field; lra.
rewrite K cross_terms; split=> [H i j Hij|H].
  have P i' j' : 0 <= (if i' != j' then w i' * w j' else 0).
    by case: (i' != j'); [have := H0 i'; have := H0 j'; nra|lra].
  have := rsum_eq0 (fun i' => rsum_ge0 (P i')) H i => /(rsum_eq0 (P i)) /(_ j).
  by rewrite Hij.
apply: rsum_zero => i; apply: rsum_zero => j.
by case: ifP => // /H.
Qed.

Lemma spread w : (0 < #|I|)%N ->
  INR #|I| * (\rsum_i w i * w i) - (\rsum_i w i) * (\rsum_i w i)
  = INR #|I| * \rsum_i (w i - (\rsum_j w j) / INR #|I|) * (w i - (\rsum_j w j) / INR #|I|).
Proof.
move=> n_pos; have n0 : 0 < INR #|I| by apply: lt_0_INR; apply/ltP.
set m := _ / _; have Hm : \rsum_i w i = m * INR #|I| by rewrite /m; field; lra.
rewrite (rsum_ext (f := fun i => (w i - m) * (w i - m))
  (g := fun i => w i * w i - (2 * m * w i - m * m))); last by move=> i; ring.
by rewrite rsum_sub (rsum_sub _ (fun=> m * m)) rsum_scal rsum_const Hm; ring.
Qed.

Theorem ess_le_n w : 0 < \rsum_i w i -> ess w <= INR #|I|.
Proof.
move=> Hw; have Hs := sum_sq_pos Hw.
have n_pos : (0 < #|I|)%N.
  rewrite lt0n; apply/negP => /eqP H; suff : \rsum_i w i = 0 by lra.
  by apply: big1 => i; have := fintype0 i H.
apply: (Rmult_le_reg_r (\rsum_i w i * w i)) => //.
rewrite /ess /Rdiv Rmult_assoc Rinv_l; last by lra.
suff : 0 <= INR #|I| * (\rsum_i w i * w i) - (\rsum_i w i) * (\rsum_i w i) by lra.
rewrite spread //; apply: Rmult_le_pos; first exact: pos_INR.
by apply: rsum_ge0 => i; exact: sq_ge0.
Qed.

(** ESS is [n] exactly when all weights are equal. *)
Theorem ess_eqn w : 0 < \rsum_i w i ->
  ess w = INR #|I| <-> (forall i, w i = (\rsum_j w j) / INR #|I|).
Proof.
move=> Hw; have Hs := sum_sq_pos Hw.
have n_pos : (0 < #|I|)%N.
  rewrite lt0n; apply/negP => /eqP H; suff : \rsum_i w i = 0 by lra.
  by apply: big1 => i; have := fintype0 i H.
have n0 : 0 < INR #|I| by apply: lt_0_INR; apply/ltP.
have K : ess w = INR #|I|
  <-> INR #|I| * (\rsum_i w i * w i) - (\rsum_i w i) * (\rsum_i w i) = 0.
  rewrite /ess; split=> [H|H].
    by rewrite -H; field; lra.
  have -> : (\rsum_i w i) * (\rsum_i w i) = INR #|I| * (\rsum_i w i * w i) by lra.
  by field; lra.
rewrite K spread //; split=> [H i|H].
  have H1 : \rsum_i (w i - (\rsum_j w j) / INR #|I|) * (w i - (\rsum_j w j) / INR #|I|) = 0.
    by case: (Rmult_integral _ _ H) => //; lra.
  by have := rsum_eq0 (fun i => sq_ge0 (w i - (\rsum_j w j) / INR #|I|)) H1 i; nra.
rewrite (_ : \rsum_i _ = 0) ?Rmult_0_r //.
apply: rsum_zero => i; rewrite -(H i); ring.
Qed.

Theorem ess_scale w c : 0 < c -> 0 < \rsum_i w i -> ess (fun i => c * w i) = ess w.
Proof.
move=> Hc /sum_sq_pos Hs; rewrite /ess rsum_scal.
rewrite (rsum_ext (f := fun i => c * w i * (c * w i)) (g := fun i => c * c * (w i * w i))).
  by rewrite rsum_scal; field; lra.
by move=> i; ring.
Qed.

(** With normalised weights ESS is [1 / sum w^2]; unnormalised it is not. *)
Theorem ess_normalised w : \rsum_i w i = 1 -> ess w = / \rsum_i w i * w i.
Proof. by move=> H; rewrite /ess H /Rdiv !Rmult_1_l. Qed.

Theorem ess_ge_inv_max w m : (forall i, 0 <= w i <= m) -> \rsum_i w i = 1 -> / m <= ess w.
Proof.
move=> H H1; rewrite ess_normalised //.
have Hs : 0 < \rsum_i w i * w i by apply: sum_sq_pos; lra.
apply: Rinv_le_contravar => //; rewrite -[X in _ <= X]Rmult_1_r -H1 -rsum_scal.
by apply: rsum_le => i; have := H i; nra.
Qed.

End ESS.
