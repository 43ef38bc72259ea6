(** The truncation threshold of least mean squared error. *)
Require Import Reals Lra Psatz.
From mathcomp Require Import all_ssreflect.
From OGRPO Require Import Prob Calculus Divergence Importance.

Set Implicit Arguments.
Unset Strict Implicit.
Unset Printing Implicit Defensive.

Open Scope R_scope.

Section OptimalTruncation.
Variables (I Y : finType).
Hypothesis n_pos : (0 < #|I|)%N.
Variables (mu pi r : Y -> R).
Hypotheses (Mu : dist mu) (Pi : dist pi) (Ac : abscont pi mu).
Hypothesis r01 : forall y, 0 <= r y <= 1.

Notation n := (nI I).
Notation rho := (ratio pi mu).

Definition J := E pi r.
Definition truncated t y := Rmin (rho y) t * r y.
(** The absolute value of the truncation bias. *)
Definition tail t := E mu (fun y => pos (rho y - t) * r y).
Definition mse t := E (iid (I := I) mu) (fun w =>
  (mean (truncated t) w - J) * (mean (truncated t) w - J)).

Lemma m_tail t : E mu (truncated t) = J - tail t.
Proof.
rewrite /J /tail -(change_measure _ Ac) -E_sub; apply: E_eq => y.
by rewrite /truncated min_pos; ring.
Qed.

Lemma mse_eq t : n * mse t = E mu (fun y => truncated t y * truncated t y)
  - (J - tail t) * (J - tail t) + n * (tail t * tail t).
Proof.
have n0 := nI_pos n_pos; rewrite /mse mean_mse // Var_eq // m_tail; field; lra.
Qed.

Lemma tail_ge0 t : 0 <= tail t.
Proof.
apply: E_ge0 => // y _; apply: Rmult_le_pos; first exact: pos_ge0.
by case: (r01 y).
Qed.

Lemma tail_anti s t : s <= t -> tail t <= tail s.
Proof.
move=> H; apply: E_le => // y _; apply: Rmult_le_compat_r; first by case: (r01 y).
by rewrite /pos; minmax.
Qed.

(** Second moment with the reward to the first power: the true one for binary rewards, an
    upper bound of it for fractional ones. *)
Definition second t := E mu (fun y => Rmin (rho y) t * Rmin (rho y) t * r y).
Definition upper t := (second t - (J - tail t) * (J - tail t)) / n + tail t * tail t.

Lemma n_upper t : n * upper t
  = second t - (J - tail t) * (J - tail t) + n * (tail t * tail t).
Proof. by have n0 := nI_pos n_pos; rewrite /upper; field; lra. Qed.

Theorem mse_le_upper t : mse t <= upper t.
Proof.
have n0 := nI_pos n_pos; apply: (Rmult_le_reg_l n) => //; rewrite mse_eq n_upper.
suff : E mu (fun y => truncated t y * truncated t y) <= second t by lra.
apply: E_le => // y _; rewrite /truncated; have := r01 y; have := sq_ge0 (Rmin (rho y) t).
move: (Rmin (rho y) t) (r y) => x z Hx Hz.
have : 0 <= x * x * (z * (1 - z)) by apply: Rmult_le_pos => //; nra.
lra.
Qed.

Theorem mse_binary t : (forall y, r y = 0 \/ r y = 1) -> mse t = upper t.
Proof.
move=> Hb; have n0 := nI_pos n_pos; apply: (Rmult_eq_reg_l n); last by lra.
rewrite mse_eq n_upper (E_eq _ (g := fun y => Rmin (rho y) t * Rmin (rho y) t * r y)) // => y.
by rewrite /truncated; case: (Hb y) => ->; ring.
Qed.

(** The growth of the second moment lies between [2 s] and [2 t] times that of the mean. *)
Lemma sq_growth s t : s <= t ->
  2 * s * (tail s - tail t) <= second t - second s <= 2 * t * (tail s - tail t).
Proof.
move=> H; rewrite /tail /second -!E_sub -!E_scal.
have K y : let d := pos (rho y - s) - pos (rho y - t) in
   2 * s * d <= Rmin (rho y) t * Rmin (rho y) t - Rmin (rho y) s * Rmin (rho y) s <= 2 * t * d.
  rewrite !min_pos /pos /=; move: (rho y) => x.
  by split; minmax; nra.
split; apply: E_le => // y _; have := K y => /=; have [r0 _] := r01 y; move: (r y) r0 => z r0 [H1 H2].
  by have := Rmult_le_compat_r z _ _ r0 H1; lra.
by have := Rmult_le_compat_r z _ _ r0 H2; lra.
Qed.

(** A root of the fixed-point equation has the least upper bound of all thresholds ... *)
Theorem fixed_point_least_upper t0 : t0 = J + (n - 1) * tail t0 ->
  forall t, upper t0 <= upper t.
Proof.
move=> Ht0 t; have n0 := nI_pos n_pos.
have n1 : 1 <= n by rewrite /nI -[X in X <= _]/(INR 1); apply: le_INR; apply/leP.
apply: (Rmult_le_reg_l n) => //; rewrite !n_upper.
case: (Rle_lt_dec t t0) => H.
  have [_ Hq] := sq_growth H; have Hb := tail_anti H.
  move: (second t0) (second t) (tail t0) (tail t) Ht0 Hq Hb => q0 q1 b0 b Ht0 Hq Hb.
  suff : 0 <= (n - 1) * ((b - b0) * (b - b0)) by nra.
  by apply: Rmult_le_pos; [lra|exact: sq_ge0].
have Hle : t0 <= t by lra.
have [Hq _] := sq_growth Hle; have Hb := tail_anti Hle.
move: (second t0) (second t) (tail t0) (tail t) Ht0 Hq Hb => q0 q1 b0 b Ht0 Hq Hb.
suff : 0 <= (n - 1) * ((b - b0) * (b - b0)) by nra.
by apply: Rmult_le_pos; [lra|exact: sq_ge0].
Qed.

(** ... which for binary rewards is the mean squared error itself. *)
Theorem optimal_clip_fixed_point t0 : (forall y, r y = 0 \/ r y = 1) ->
  t0 = J + (n - 1) * tail t0 -> forall t, mse t0 <= mse t.
Proof. by move=> Hb Ht0 t; rewrite !mse_binary //; exact: fixed_point_least_upper. Qed.

(** The root is unique, for any number [m >= 1] of samples. *)
Definition residual m t := t - J - (m - 1) * tail t.

Theorem residual_increasing m s t : 1 <= m -> s <= t ->
  t - s <= residual m t - residual m s.
Proof. by move=> Hm H; have := tail_anti H; rewrite /residual; nra. Qed.

Theorem fixed_point_unique m s t : 1 <= m -> residual m s = 0 -> residual m t = 0 -> s = t.
Proof.
move=> Hm Hs Ht; case: (Rle_lt_dec s t) => H.
  by have := residual_increasing Hm H; lra.
by have H' : t <= s by [lra]; have := residual_increasing Hm H'; lra.
Qed.

(** More samples, a larger threshold. *)
Theorem fixed_point_monotone m m' s t : 1 <= m -> m <= m' ->
  residual m s = 0 -> residual m' t = 0 -> s <= t.
Proof.
move=> Hm Hmm Hs Ht; case: (Rle_lt_dec s t) => // H.
have H' : t <= s by lra.
have Hm' : 1 <= m' by lra.
have := residual_increasing Hm' H'; have := tail_ge0 s.
by move: Hs Ht; rewrite /residual => Hs Ht Hb; nra.
Qed.

(** Ionides' rate: the root is at most [(J + sqrt (J^2 + (m-1) M2)) / 2]. *)
Theorem fixed_point_rate m t : 1 <= m -> 0 < t -> residual m t = 0 ->
  t <= (J + sqrt (J * J + (m - 1) * m2 pi mu)) / 2.
Proof.
move=> Hm Ht H.
have Hb : tail t <= m2 pi mu / (4 * t).
  apply: (Rle_trans _ (E mu (fun y => pos (rho y - t)))); last exact: tail_le.
  apply: E_le => // y _; have := pos_ge0 (rho y - t); have := r01 y.
  by move: (pos _) (r y) => x z; nra.
have H4 : tail t * (4 * t) <= m2 pi mu.
  have -> : m2 pi mu = m2 pi mu / (4 * t) * (4 * t) by field; lra.
  by apply: Rmult_le_compat_r; lra.
have Hd : 0 <= J * J + (m - 1) * m2 pi mu.
  have := m2_ge1 Pi Mu Ac; have := sq_ge0 J; nra.
suff : 2 * t - J <= sqrt (J * J + (m - 1) * m2 pi mu) by lra.
case: (Rle_lt_dec (2 * t - J) 0) => Hs.
  by have := sqrt_pos (J * J + (m - 1) * m2 pi mu); lra.
rewrite -(sqrt_square (2 * t - J)); last by lra.
apply: sqrt_le_1_alt; move: H; rewrite /residual => H.
have : t = J + (m - 1) * tail t by lra.
move=> Ht'; have : t * t = J * t + (m - 1) * (tail t * t) by rewrite {1}Ht'; ring.
by nra.
Qed.

(** A root exists: the residual is continuous and changes sign. *)
Lemma pos_lipschitz x s t : Rabs (pos (x - s) - pos (x - t)) <= Rabs (s - t).
Proof.
by rewrite /pos; minmax; apply: Rabs_le; have := Rle_abs (s - t); have := Rle_abs (t - s);
   rewrite (Rabs_minus_sym t s); lra.
Qed.

Lemma tail_lipschitz s t : Rabs (tail s - tail t) <= Rabs (s - t).
Proof.
rewrite /tail -E_sub; apply: Rle_trans; first exact: E_abs.
rewrite -[X in _ <= X](E_const _ Mu); apply: E_le => // y _.
have [r0 r1] := r01 y; rewrite -Rmult_minus_distr_r Rabs_mult (Rabs_pos_eq (r y)) //.
have := pos_lipschitz (rho y) s t; have := Rabs_pos (pos (rho y - s) - pos (rho y - t)).
by move: (Rabs (pos _ - _)) (r y) r0 r1 => x z *; nra.
Qed.

Lemma residual_continuous m : continuity (residual m).
Proof.
move=> t e He; set c := 1 + Rabs (m - 1).
have Hc : 1 <= c by rewrite /c; have := Rabs_pos (m - 1); lra.
exists (e / c); split; first by apply: Rdiv_lt_0_compat; lra.
move=> s [_]; rewrite /= /R_dist => Hs.
have -> : residual m s - residual m t = (s - t) - (m - 1) * (tail s - tail t).
  by rewrite /residual; ring.
apply: (Rle_lt_trans _ (c * Rabs (s - t))).
  apply: Rle_trans; first exact: Rabs_triang.
  rewrite Rabs_Ropp Rabs_mult /c Rmult_plus_distr_r Rmult_1_l.
  apply: Rplus_le_compat_l; apply: Rmult_le_compat_l; first exact: Rabs_pos.
  exact: tail_lipschitz.
have -> : e = c * (e / c) by field; lra.
by apply: Rmult_lt_compat_l; lra.
Qed.

Theorem fixed_point_exists m : 1 <= m -> exists t, 0 <= t /\ residual m t = 0.
Proof.
move=> Hm; have J0 : 0 <= J by apply: E_ge0 => // y _; case: (r01 y).
set hi := J + (m - 1) * tail 0 + 1.
have T0 := tail_ge0 0.
have Hhi : 0 < hi by rewrite /hi; nra.
have R0 : residual m 0 <= 0 by rewrite /residual; nra.
have R1 : 0 <= residual m hi.
  have := @tail_anti 0 hi (Rlt_le _ _ Hhi); rewrite /residual => H.
  by rewrite {1}/hi; nra.
have Hs : residual m 0 * residual m hi <= 0 by nra.
have [t [Ht Hr]] := IVT_cor _ 0 hi (residual_continuous m) (Rlt_le _ _ Hhi) Hs.
by exists t; split; [lra|].
Qed.

End OptimalTruncation.
