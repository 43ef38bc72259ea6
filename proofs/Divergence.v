(** Total variation, KL and chi-square between distributions on a finite type. *)
Require Import Reals Lra Psatz.
From mathcomp Require Import all_ssreflect.
From OGRPO Require Import Prob Calculus.

Set Implicit Arguments.
Unset Strict Implicit.
Unset Printing Implicit Defensive.

Open Scope R_scope.

Section Divergence.
Variable Y : finType.
Implicit Types (mu pi : Y -> R) (f : Y -> R) (y : Y).

Definition ratio pi mu y := pi y / mu y.
Definition tv pi mu := / 2 * \rsum_y Rabs (pi y - mu y).
Definition kl pi mu := \rsum_y pi y * ln (ratio pi mu y).
(** The second moment of the ratio, [1 + chi2]. *)
Definition m2 pi mu := E mu (fun y => ratio pi mu y * ratio pi mu y).
Definition chi2 pi mu := m2 pi mu - 1.

Lemma ratio_mass pi mu y : abscont pi mu -> mu y * ratio pi mu y = pi y.
Proof.
move=> A; rewrite /ratio; case: (Req_dec (mu y) 0) => [H|H]; last by field.
by rewrite H (A y H) Rmult_0_l.
Qed.

Lemma ratio_ge0 pi mu y : dist pi -> dist mu -> 0 < mu y -> 0 <= ratio pi mu y.
Proof.
move=> [P _] _ H; apply: Rmult_le_pos; first exact: P.
by left; exact: Rinv_0_lt_compat.
Qed.

(** Change of measure: [E_mu[rho f] = E_pi f] when [pi << mu]. *)
Lemma change_measure pi mu f : abscont pi mu ->
  E mu (fun y => ratio pi mu y * f y) = E pi f.
Proof.
by move=> A; apply: rsum_ext => y; rewrite -Rmult_assoc ratio_mass.
Qed.

Lemma E_ratio pi mu : dist pi -> abscont pi mu -> E mu (ratio pi mu) = 1.
Proof.
by move=> [_ P] A; rewrite -[RHS]P; apply: rsum_ext => y; rewrite ratio_mass.
Qed.

(** Without the support assumption the ratio has mass at most one. *)
Lemma mass_le pi mu y : dist pi -> dist mu -> mu y * ratio pi mu y <= pi y.
Proof.
move=> [P _] _; rewrite /ratio; case: (Req_dec (mu y) 0) => [->|H].
  by rewrite Rmult_0_l; exact: P.
by right; field.
Qed.

Lemma change_measure_le pi mu f : dist pi -> dist mu -> (forall y, 0 <= f y) ->
  E mu (fun y => ratio pi mu y * f y) <= E pi f.
Proof.
move=> P M H; apply: rsum_le => y; rewrite -Rmult_assoc.
by apply: Rmult_le_compat_r; [exact: H|exact: mass_le].
Qed.

(** ** Total variation *)
Lemma tv_ge0 pi mu : 0 <= tv pi mu.
Proof. by apply: Rmult_le_pos; [lra|apply: rsum_ge0 => y; exact: Rabs_pos]. Qed.

Lemma tv_sym pi mu : tv pi mu = tv mu pi.
Proof. by congr (_ * _); apply: rsum_ext => y; exact: Rabs_minus_sym. Qed.

Lemma tv_refl mu : tv mu mu = 0.
Proof.
by rewrite /tv rsum_zero ?Rmult_0_r // => y; rewrite Rminus_diag_eq // Rabs_R0.
Qed.

(** The dual bound; centring [f] removes a factor two. *)
Theorem tv_dual pi mu f a b : dist pi -> dist mu -> (forall y, a <= f y <= b) ->
  Rabs (E pi f - E mu f) <= (b - a) * tv pi mu.
Proof.
move=> [_ P] [_ M] H; set c := (a + b) / 2.
have -> : E pi f - E mu f = \rsum_y (pi y - mu y) * (f y - c).
  have -> : \rsum_y (pi y - mu y) * (f y - c)
    = E pi f - E mu f - c * (\rsum_y pi y - \rsum_y mu y).
    by rewrite /E -!rsum_sub -rsum_scal -rsum_sub; apply: rsum_ext => y; ring.
  by rewrite P M; ring.
apply: Rle_trans; first exact: rsum_abs.
rewrite /tv -Rmult_assoc -rsum_scal; apply: rsum_le => y.
rewrite Rabs_mult (Rmult_comm (Rabs _)); apply: Rmult_le_compat_r; first exact: Rabs_pos.
by have := H y; rewrite /c => Hy; apply: Rabs_le; lra.
Qed.

Lemma tv_event pi mu : dist pi -> dist mu ->
  E pi (fun y => if Rltb (mu y) (pi y) then 1 else 0)
  - E mu (fun y => if Rltb (mu y) (pi y) then 1 else 0) = tv pi mu.
Proof.
move=> [_ P] [_ M].
have H : \rsum_y Rabs (pi y - mu y) = 2 * (
  E pi (fun y => if Rltb (mu y) (pi y) then 1 else 0)
  - E mu (fun y => if Rltb (mu y) (pi y) then 1 else 0))
  - (\rsum_y pi y - \rsum_y mu y).
  rewrite /E -!rsum_sub -rsum_scal -rsum_sub; apply: rsum_ext => y /=.
  by case: RltbP => H; [rewrite Rabs_pos_eq|rewrite Rabs_left1]; lra.
by rewrite /tv H P M; field.
Qed.

Lemma tv_le1 pi mu : dist pi -> dist mu -> tv pi mu <= 1.
Proof.
move=> P M; rewrite -tv_event //.
set A := fun y => _.
have HA y : 0 <= A y <= 1 by rewrite /A; case: RltbP; lra.
by have := E_between P HA; have := E_between M HA; lra.
Qed.

(** [E_mu (rho - 1)_+ = TV] and [E_mu min(1, rho) = 1 - TV]. *)
Theorem tv_pos_part pi mu : dist pi -> dist mu -> abscont pi mu ->
  E mu (fun y => Rmax (ratio pi mu y - 1) 0) = tv pi mu.
Proof.
move=> P M A; rewrite -tv_event //.
rewrite /E -rsum_sub; apply: rsum_ext => y; rewrite -Rmult_minus_distr_r.
case: (M) => /(_ y) H0 _; case: RltbP; rewrite -(ratio_mass y A);
  move: (ratio pi mu y) => t H; first by rewrite Rmax_left; [ring|nra].
case: H0 => [H0|<-]; last by ring.
by rewrite Rmax_right; [ring|nra].
Qed.

Theorem tv_min pi mu : dist pi -> dist mu -> abscont pi mu ->
  E mu (fun y => Rmin 1 (ratio pi mu y)) = 1 - tv pi mu.
Proof.
move=> P M A; rewrite -(tv_pos_part P M A) -{2}(E_ratio P A) -E_sub; apply: E_eq => y.
by rewrite /Rmin /Rmax; case: Rle_dec; case: Rle_dec; lra.
Qed.

(** ** KL *)
Definition phi t := t * ln t - t + 1.

Lemma phi_ge0 t : 0 <= t -> 0 <= phi t.
Proof.
move=> H; have := pinsker_pointwise H; rewrite -/(phi t).
by have := sq_ge0 (t - 1); nra.
Qed.

Lemma kl_phi pi mu : dist pi -> dist mu -> abscont pi mu ->
  kl pi mu = E mu (fun y => phi (ratio pi mu y)).
Proof.
move=> [_ P] [_ M] A; rewrite /kl.
have -> : E mu (fun y => phi (ratio pi mu y))
  = \rsum_y pi y * ln (ratio pi mu y) - (\rsum_y pi y - \rsum_y mu y).
  rewrite /E -!rsum_sub; apply: rsum_ext => y.
  by rewrite /phi -(ratio_mass y A); ring.
by rewrite P M; ring.
Qed.

Theorem kl_ge0 pi mu : dist pi -> dist mu -> abscont pi mu -> 0 <= kl pi mu.
Proof.
move=> P M A; rewrite kl_phi //; apply: E_ge0 => // y Hy.
by apply: phi_ge0; exact: ratio_ge0.
Qed.

(** Pinsker's inequality with the constant 1/2. *)
Theorem pinsker pi mu : dist pi -> dist mu -> abscont pi mu ->
  tv pi mu * tv pi mu <= kl pi mu / 2.
Proof.
move=> P M A; rewrite kl_phi //.
pose t := ratio pi mu; pose q := E mu (fun y => Rabs (t y - 1)).
have Hq : tv pi mu = q / 2.
  rewrite /tv /q /E Rmult_comm; congr (_ * _); apply: rsum_ext => y.
  case: (M) => /(_ y) H0 _; rewrite -(ratio_mass y A) -/(t y).
  have -> : mu y * t y - mu y = mu y * (t y - 1) by ring.
  by rewrite Rabs_mult Rabs_pos_eq.
have K (l : R) : 2 * l * q <= 2 * (l * l) + E mu (fun y => phi (t y)).
  have E2 : E mu (fun y => (2 * t y + 4) / 3) = 2.
    rewrite (E_eq _ (g := fun y => 2 / 3 * t y + 4 / 3)); last by move=> y; field.
    by rewrite E_add E_scal E_const // E_ratio //; field.
  have -> : 2 * l * q = E mu (fun y => 2 * l * Rabs (t y - 1)) by rewrite E_scal.
  have -> : 2 * (l * l) + E mu (fun y => phi (t y))
    = E mu (fun y => l * l * ((2 * t y + 4) / 3) + phi (t y)).
    by rewrite E_add (E_scal _ (l * l)) E2; ring.
  apply: E_le => // y Hy.
  have Ht : 0 <= t y by exact: ratio_ge0.
  have := pinsker_pointwise Ht; rewrite -/(phi (t y)).
  have -> : (t y - 1) * (t y - 1) = Rabs (t y - 1) * Rabs (t y - 1).
    by rewrite -Rabs_mult Rabs_pos_eq //; exact: sq_ge0.
  move: (phi (t y)) (Rabs (t y - 1)) => p d Hp.
  have := sq_ge0 (l * (2 * t y + 4) - 3 * d) => Hs; nra.
by have := K (q / 2); rewrite Hq -/t; lra.
Qed.

Lemma kl_le_ln c pi mu : dist pi -> dist mu -> abscont pi mu -> 0 < c ->
  kl pi mu <= ln c + m2 pi mu / c - 1.
Proof.
move=> P M A Hc; case: (P) => P0 P1.
have -> : m2 pi mu = E pi (ratio pi mu) by rewrite /m2 change_measure.
have -> : ln c + E pi (ratio pi mu) / c - 1
  = E pi (fun y => ln c - 1 + / c * ratio pi mu y).
  by rewrite E_add E_scal E_const // /Rdiv; ring.
apply: rsum_le => y; case: (P0 y) => [Hy|<-]; last by lra.
apply: Rmult_le_compat_l; first by lra.
have Hr : 0 < ratio pi mu y.
  case: (M) => /(_ y) [Hm|Hm] _; first exact: Rdiv_lt_0_compat.
  by have := A y (esym Hm); lra.
by have := ln_tangent Hr Hc; rewrite /Rdiv; lra.
Qed.

Lemma m2_ge1 pi mu : dist pi -> dist mu -> abscont pi mu -> 1 <= m2 pi mu.
Proof.
move=> P M A; rewrite /m2; have := E_sq_le (ratio pi mu) M.
by rewrite E_ratio //; lra.
Qed.

Theorem chi2_ge0 pi mu : dist pi -> dist mu -> abscont pi mu -> 0 <= chi2 pi mu.
Proof. by move=> P M A; have := m2_ge1 P M A; rewrite /chi2; lra. Qed.

Theorem kl_le_ln_chi2 pi mu : dist pi -> dist mu -> abscont pi mu ->
  kl pi mu <= ln (1 + chi2 pi mu).
Proof.
move=> P M A; have H := m2_ge1 P M A; have Hm : 0 < m2 pi mu by lra.
rewrite /chi2 (_ : 1 + (m2 pi mu - 1) = m2 pi mu); last by ring.
have := kl_le_ln P M A Hm; have -> : m2 pi mu / m2 pi mu = 1 by field; lra.
by lra.
Qed.

Theorem kl_le_chi2 pi mu : dist pi -> dist mu -> abscont pi mu -> kl pi mu <= chi2 pi mu.
Proof.
move=> P M A; have := @kl_le_ln 1 _ _ P M A Rlt_0_1.
by rewrite ln_1 /chi2; lra.
Qed.

(** [E_mu rho^2 >= exp KL]: KL bounds the second moment from below only. *)
Theorem m2_ge_exp_kl pi mu : dist pi -> dist mu -> abscont pi mu ->
  exp (kl pi mu) <= m2 pi mu.
Proof.
move=> P M A; have H := m2_ge1 P M A.
rewrite -(exp_ln (m2 pi mu)); last by lra.
have := kl_le_ln_chi2 P M A; rewrite /chi2 (_ : 1 + (m2 pi mu - 1) = m2 pi mu); last by ring.
by case=> [Hl|->]; [left; exact: exp_increasing|right].
Qed.

Theorem chi2_le_sup pi mu r : dist pi -> dist mu -> abscont pi mu ->
  (forall y, 0 < mu y -> ratio pi mu y <= r) -> chi2 pi mu <= r - 1.
Proof.
move=> P M A H; rewrite /chi2 /m2 change_measure //.
suff : E pi (ratio pi mu) <= r by lra.
rewrite -(E_const r P); apply: E_le => // y Hy; apply: H.
by case: (M) => /(_ y) [//|Hm] _; have := A y (esym Hm); lra.
Qed.

(** With a cap [r] on the ratio KL does bound chi-square: [kappa = (r-1)^2 / (r ln r - r + 1)]. *)
Theorem chi2_le_kappa_kl pi mu r : dist pi -> dist mu -> abscont pi mu -> 1 < r ->
  (forall y, 0 < mu y -> ratio pi mu y <= r) ->
  chi2 pi mu * (r * ln r - r + 1) <= (r - 1) * (r - 1) * kl pi mu.
Proof.
move=> P M A Hr H.
have -> : chi2 pi mu = E mu (fun y => (ratio pi mu y - 1) * (ratio pi mu y - 1)).
  rewrite (E_eq mu (g := fun y => ratio pi mu y * ratio pi mu y - (2 * ratio pi mu y - 1))).
    by rewrite E_sub E_sub E_scal E_const // E_ratio // /chi2 /m2; ring.
  by move=> y; ring.
rewrite kl_phi // Rmult_comm -!E_scal; apply: E_le => // y Hy.
case: (ratio_ge0 P M Hy) (H y Hy) => [H0|<-] Hle.
  by rewrite Rmult_comm; apply: kappa_pointwise.
have := phi_le_sq (Rlt_le _ _ Hr); have := sq_ge0 (r - 1); rewrite /phi Rmult_0_l; lra.
Qed.

(** The binary case of the data-processing inequality: a [[0,1]]-valued statistic
    cannot be easier to move than the KL budget allows. *)
Theorem kl_data_processing pi mu f : dist pi -> dist mu -> abscont pi mu ->
  (forall y, 0 <= f y <= 1) -> 0 < E mu f < 1 -> 0 < E pi f < 1 ->
  E pi f * ln (E pi f / E mu f) + (1 - E pi f) * ln ((1 - E pi f) / (1 - E mu f)) <= kl pi mu.
Proof.
move=> P M A Hf Hq Hp; case: (P) => P0 P1.
set p := E pi f; set q := E mu f; rewrite -/p -/q in Hp Hq.
set u := p / q; set v := (1 - p) / (1 - q).
have Hu : 0 < u by apply: Rdiv_lt_0_compat; lra.
have Hv : 0 < v by apply: Rdiv_lt_0_compat; lra.
pose h y := f y * u + (1 - f y) * v.
have Hh y : 0 < h y.
  have := Hf y; rewrite /h => Hy; case: (Rle_lt_dec (f y) (/ 2)) => H; nra.
have Mh : E mu h = 1.
  rewrite (E_eq _ (g := fun y => (u - v) * f y + v)); last by move=> y; rewrite /h; ring.
  by rewrite E_add E_scal E_const // -/q /u /v; field; lra.
have lnh y : f y * ln u + (1 - f y) * ln v <= ln (h y).
  have Tu := ln_tangent Hu (Hh y); have Tv := ln_tangent Hv (Hh y).
  have E1 : f y * (u / h y) + (1 - f y) * (v / h y) = 1.
    by rewrite /h; field; have := Hh y; rewrite /h; lra.
  by have := Hf y => Hy; nra.
have -> : p * ln u + (1 - p) * ln v = E pi (fun y => f y * ln u + (1 - f y) * ln v).
  rewrite (E_eq _ (g := fun y => (ln u - ln v) * f y + ln v)); last by move=> y; ring.
  by rewrite E_add E_scal E_const // -/p; ring.
apply: (Rle_trans _ (E pi (fun y => ln (h y)))); first by apply: E_le.
suff : 0 <= kl pi mu - E pi (fun y => ln (h y)) by lra.
have -> : 0 = \rsum_y pi y - E mu h by rewrite P1 Mh; ring.
rewrite /kl /E -!rsum_sub; apply: rsum_le => y; rewrite -Rmult_minus_distr_l.
case: (M) => /(_ y) [Hm|Hm] _; last by rewrite -Hm (A y (esym Hm)); lra.
case: (P0 y) => [Hpy|<-]; last by have := Hh y; nra.
have Hr : 0 < ratio pi mu y by apply: Rdiv_lt_0_compat.
have := ln_tangent (Hh y) Hr.
have E2 : pi y * (h y / ratio pi mu y) = mu y * h y by rewrite /ratio; field; lra.
by nra.
Qed.

End Divergence.

(** ** KL does not bound chi-square *)
Definition bern (p : R) : bool -> R := fun b => if b then p else 1 - p.

Lemma bern_dist p : 0 <= p <= 1 -> dist (bern p).
Proof. by move=> H; split=> [[]|]; rewrite /bern ?rsum_bool; lra. Qed.

Lemma E_bern p f : E (bern p) f = p * f true + (1 - p) * f false.
Proof. by rewrite /E rsum_bool. Qed.

Theorem kl_does_not_bound_chi2 d M : 0 < d -> 0 < M ->
  exists pi mu : bool -> R, [/\ dist pi, dist mu, abscont pi mu,
    kl pi mu <= d & M <= chi2 pi mu].
Proof.
move=> Hd HM; pose p := Rmin (/ 2) (d * d / (4 * (M + 2))).
have Hp0 : 0 < p.
  by apply: Rmin_glb_lt; [lra|apply: Rdiv_lt_0_compat; nra].
have Hp1 : p <= / 2 by exact: Rmin_l.
have Hp2 : p * (4 * (M + 2)) <= d * d.
  have := Rmin_r (/ 2) (d * d / (4 * (M + 2))); rewrite -/p => H.
  have -> : d * d = d * d / (4 * (M + 2)) * (4 * (M + 2)) by field; lra.
  by apply: Rmult_le_compat_r; lra.
have Hdp : 0 < d / p by exact: Rdiv_lt_0_compat.
pose e := exp (d / p); have He : 0 < e := exp_pos _.
have He1 : 1 < e by have := exp_ge (d / p); rewrite -/e; lra.
pose q := p / e.
have Hq0 : 0 < q by exact: Rdiv_lt_0_compat.
have Hqe : q * e = p by rewrite /q; field; lra.
have Hqp : q < p by nra.
have Q0 : q <> 0 by lra.
have Q1 : 1 - q <> 0 by lra.
exists (bern p), (bern q); split; try (by apply: bern_dist; lra).
- by case; rewrite /bern; lra.
- rewrite /kl rsum_bool /ratio /bern.
  have -> : p / q = e by rewrite -Hqe; field; lra.
  rewrite /e ln_exp; have -> : p * (d / p) = d by field; lra.
  have H : 0 < (1 - p) / (1 - q) by apply: Rdiv_lt_0_compat; lra.
  suff : ln ((1 - p) / (1 - q)) <= 0 by nra.
  apply: (Rle_trans _ ((1 - p) / (1 - q) - 1)); first exact: ln_le_sub1.
  suff : (1 - p) / (1 - q) <= 1 by lra.
  by apply: (Rmult_le_reg_r (1 - q)); [lra|rewrite /Rdiv Rmult_assoc Rinv_l; lra].
- rewrite /chi2 /m2 E_bern /ratio /bern.
  have -> : q * (p / q * (p / q)) = p * e.
    by rewrite -{2}Hqe; field; lra.
  have H2 : 0 <= (1 - q) * ((1 - p) / (1 - q) * ((1 - p) / (1 - q))).
    by apply: Rmult_le_pos; [lra|exact: sq_ge0].
  have He2 : d / p * (d / p) / 4 <= e by apply: exp_ge_sq; lra.
  have : p * (d / p * (d / p) / 4) = d * d / p / 4 by field; lra.
  have : M + 2 <= d * d / p / 4.
    have -> : d * d / p / 4 = (d * d) * / (4 * p) by field; lra.
    have -> : M + 2 = (p * (4 * (M + 2))) * / (4 * p) by field; lra.
    by apply: Rmult_le_compat_r; [left; apply: Rinv_0_lt_compat; lra|].
  by nra.
Qed.
