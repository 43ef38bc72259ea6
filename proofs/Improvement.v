(** Policy improvement: what KL and total variation do and do not guarantee. *)
Require Import Reals Lra Psatz.
From mathcomp Require Import all_ssreflect.
From OGRPO Require Import Prob Calculus Divergence Importance Clip.

Set Implicit Arguments.
Unset Strict Implicit.
Unset Printing Implicit Defensive.

Open Scope R_scope.

Section Improvement.
Variable Y : finType.
Implicit Types (alpha mu pi pik r : Y -> R).

(** ** The proposal's Theorem 1, repaired *)

Lemma tv_le_sqrt_kl pi mu d : dist pi -> dist mu -> abscont pi mu -> kl pi mu <= d ->
  tv pi mu <= sqrt (d / 2).
Proof.
move=> P M A H; rewrite -(sqrt_square (tv pi mu)); last exact: tv_ge0.
by apply: sqrt_le_1_alt; have := pinsker P M A; lra.
Qed.

(** A step within KL [d] of the behaviour policy does no more harm than [sqrt (d/2)]. *)
Theorem kl_no_harm pi mu r d : dist pi -> dist mu -> abscont pi mu ->
  (forall y, 0 <= r y <= 1) -> kl pi mu <= d -> E mu r - sqrt (d / 2) <= E pi r.
Proof.
move=> P M A H /(tv_le_sqrt_kl P M A) Ht.
by have := tv_dual P M H => /Rabs_le_between; lra.
Qed.

(** Against a third policy the distance of that policy is subtracted too. *)
Theorem kl_no_harm_old pi old mu r d d' : dist pi -> dist old -> dist mu ->
  abscont pi mu -> abscont old mu -> (forall y, 0 <= r y <= 1) ->
  kl pi mu <= d -> kl old mu <= d' ->
  E old r - sqrt (d / 2) - sqrt (d' / 2) <= E pi r.
Proof.
move=> P O M A A' H K K'; have H1 := kl_no_harm P M A H K.
have := tv_le_sqrt_kl O M A' K'.
by have := tv_dual O M H => /Rabs_le_between; lra.
Qed.

(** The loss relative to [J(mu)]: rare rewards cannot lose much. *)
Theorem kl_no_harm_relative pi mu r d : dist pi -> dist mu -> abscont pi mu ->
  (forall y, 0 <= r y <= 1) -> kl pi mu <= d -> E mu r - sqrt (2 * E mu r * d) <= E pi r.
Proof.
move=> P M A H Hd; set j := E mu r.
have j0 : 0 <= j by apply: E_ge0 => // y _; case: (H y).
have k0 := kl_ge0 P M A; have J0 : 0 <= E pi r by apply: E_ge0 => // y _; case: (H y).
case: (Rle_lt_dec j (E pi r)) => Hj; first by have := sqrt_pos (2 * j * d); lra.
set D := j - E pi r; have D0 : 0 < D by rewrite /D; lra.
have jp : 0 < j by rewrite /D in D0; lra.
have K l : 0 <= l -> l * D <= l * l * j / 2 + kl pi mu.
  move=> Hl; have -> : D = E mu (fun y => (1 - ratio pi mu y) * r y).
    rewrite /D /j -(change_measure r A) -E_sub; apply: E_eq => y; ring.
  rewrite kl_phi // -E_scal.
  have -> : l * l * j / 2 = E mu (fun y => l * l / 2 * r y) by rewrite E_scal /j; field.
  rewrite -E_add; apply: E_le => // y Hy; have Ht := ratio_ge0 P M Hy.
  have Hp := phi_ge0 Ht; move: (ratio pi mu y) Ht Hp => t Ht Hp.
  have [r0 r1] := H y; move: (r y) r0 r1 => x x0 x1.
  case: (Rle_lt_dec t 1) => H1; last first.
    have : 0 <= l * ((t - 1) * x) by apply: Rmult_le_pos => //; apply: Rmult_le_pos; lra.
    have : 0 <= l * l / 2 * x.
      by apply: Rmult_le_pos => //; have := sq_ge0 l; lra.
    lra.
  have Hphi : (1 - t) * (1 - t) / 2 <= phi t.
    have := pinsker_pointwise Ht; rewrite -/(phi t).
    have := sq_ge0 (t - 1); nra.
  have S : 0 <= (l - (1 - t)) * (l - (1 - t)) * x by apply: Rmult_le_pos => //; exact: sq_ge0.
  have : (1 - t) * (1 - t) / 2 * x <= phi t by have := sq_ge0 (1 - t); nra.
  lra.
have DD : D * D <= 2 * j * d.
  have Hq : 0 <= D / j by apply: Rmult_le_pos; [lra|left; exact: Rinv_0_lt_compat].
  have := K (D / j) Hq.
  have -> : D / j * (D / j) * j / 2 = D / j * D / 2 by field; lra.
  move=> H2; have H3 : D / j * D <= 2 * d by lra.
  have -> : D * D = D / j * D * j by field; lra.
  by nra.
suff : D <= sqrt (2 * j * d) by rewrite /D; lra.
by rewrite -(sqrt_square D); [exact: sqrt_le_1_alt|lra].
Qed.

(** ** Advantages standardised by any [sigma > 0] *)
Variable sigma : R.
Hypothesis sigma_pos : 0 < sigma.

Definition adv alpha r y := (r y - E alpha r) / sigma.
Definition surrogate alpha r pi := E alpha (fun y => ratio pi alpha y * adv alpha r y).

Lemma surrogate_eq alpha r pi : dist pi -> dist alpha -> abscont pi alpha ->
  surrogate alpha r pi = (E pi r - E alpha r) / sigma.
Proof.
move=> P M A; rewrite /surrogate change_measure //.
rewrite (E_eq _ (g := fun y => / sigma * r y - / sigma * E alpha r)).
  by rewrite E_sub E_scal E_const //; field; lra.
by move=> y; rewrite /adv; field; lra.
Qed.

(** The exact identity: the improvement is sigma times the difference of surrogates. *)
Theorem improvement_identity alpha pi pik r : dist pi -> dist pik -> dist alpha ->
  abscont pi alpha -> abscont pik alpha ->
  E pi r - E pik r = sigma * (surrogate alpha r pi - surrogate alpha r pik).
Proof. by move=> P K M A A'; rewrite !surrogate_eq //; field; lra. Qed.

(** Sharp form of the paper's Theorem 1: any sigma, no factor two. *)
Theorem sharp_improvement alpha pi pik r a b : dist pi -> dist pik -> dist alpha ->
  abscont pi alpha -> (forall y, a <= r y <= b) ->
  surrogate alpha r pi - Rabs (1 - sigma) / sigma * (b - a) * tv pi alpha
    - (b - a) * tv pik alpha <= E pi r - E pik r.
Proof.
move=> P K M A H; rewrite surrogate_eq //.
have := tv_dual P M H; have := tv_dual K M H => /Rabs_le_between H1 H2.
set d := E pi r - E alpha r in H2 *.
have -> : d / sigma = d + (1 - sigma) / sigma * d by field; lra.
have : (1 - sigma) / sigma * d <= Rabs (1 - sigma) / sigma * (b - a) * tv pi alpha.
  rewrite Rmult_assoc; apply: (Rle_trans _ (Rabs ((1 - sigma) / sigma * d))).
    exact: Rle_abs.
  rewrite Rabs_mult /Rdiv Rabs_mult (Rabs_pos_eq (/ sigma)); last first.
    by left; exact: Rinv_0_lt_compat.
  apply: Rmult_le_compat_l => //; apply: Rmult_le_pos; first exact: Rabs_pos.
  by left; exact: Rinv_0_lt_compat.
by rewrite /d; lra.
Qed.

(** No blow-up as sigma tends to zero. *)
Theorem improvement_no_blowup alpha pi pik r a b : dist pi -> dist pik -> dist alpha ->
  abscont pi alpha -> (forall y, a <= r y <= b) ->
  sigma * surrogate alpha r pi - (b - a) * tv pik alpha <= E pi r - E pik r.
Proof.
move=> P K M A H; rewrite surrogate_eq //.
have := tv_dual K M H => /Rabs_le_between H1.
have -> : sigma * ((E pi r - E alpha r) / sigma) = E pi r - E alpha r by field; lra.
lra.
Qed.

(** The published bound, with its hypotheses: [sigma <= 1] and [pi << alpha]. *)
Theorem published_improvement alpha pi pik r : dist pi -> dist pik -> dist alpha ->
  abscont pi alpha -> (forall y, 0 <= r y <= 1) -> sigma <= 1 ->
  surrogate alpha r pi - 2 * ((1 - sigma) / sigma) * tv pi alpha - 2 * tv pik alpha
  <= E pi r - E pik r.
Proof.
move=> P K M A H Hs; have := sharp_improvement P K M A H.
have := tv_ge0 pik alpha; rewrite (Rabs_pos_eq (1 - sigma)); last by lra.
have : 0 <= (1 - sigma) / sigma * tv pi alpha.
  apply: Rmult_le_pos; last exact: tv_ge0.
  by apply: Rmult_le_pos; [lra|left; exact: Rinv_0_lt_compat].
lra.
Qed.

(** ... and its vacuity: for [sigma <= 1/2] its right side is never positive. *)
Theorem published_vacuous alpha pi pik r : dist pi -> dist alpha -> abscont pi alpha ->
  (forall y, 0 <= r y <= 1) -> sigma <= / 2 ->
  surrogate alpha r pi - 2 * ((1 - sigma) / sigma) * tv pi alpha - 2 * tv pik alpha <= 0.
Proof.
move=> P M A H Hs; rewrite surrogate_eq //.
have := tv_dual P M H => /Rabs_le_between H1; have := tv_ge0 pik alpha.
have T := tv_ge0 pi alpha.
suff : (E pi r - E alpha r) / sigma <= 2 * ((1 - sigma) / sigma) * tv pi alpha by lra.
apply: (Rmult_le_reg_r sigma) => //.
have -> : (E pi r - E alpha r) / sigma * sigma = E pi r - E alpha r by field; lra.
have -> : 2 * ((1 - sigma) / sigma) * tv pi alpha * sigma = 2 * (1 - sigma) * tv pi alpha.
  by field; lra.
by nra.
Qed.

(** The standard deviation, not the variance, is at most one half: [sigma^2 <= 1/4]. *)
Theorem variance_le_quarter mu r : dist mu -> (forall y, 0 <= r y <= 1) -> Var mu r <= / 4.
Proof. by move=> M H; have := popoviciu M H; lra. Qed.

(** ** Minorise-maximise *)

(** For any constant baseline [b]: the clipped surrogate with the exact centre is a minorant
    of the true improvement, and touches it at [pi = pik]. *)
Theorem mm_baseline alpha pi pik r b el eh : dist pi -> dist pik -> dist alpha ->
  abscont pi alpha -> abscont pik alpha -> 0 <= el -> 0 <= eh ->
  E alpha (fun y => feps el eh (ratio pi alpha y) (ratio pik alpha y) (r y - b))
  - E alpha (fun y => feps el eh (ratio pik alpha y) (ratio pik alpha y) (r y - b))
  <= E pi r - E pik r.
Proof.
move=> P K M A A' He Hf; rewrite -E_sub.
have -> : E pi r - E pik r
  = E alpha (fun y => (ratio pi alpha y - ratio pik alpha y) * (r y - b)).
  rewrite (E_eq alpha (g := fun y =>
    (ratio pi alpha y * r y - ratio pik alpha y * r y)
     - (b * ratio pi alpha y - b * ratio pik alpha y))); last by move=> y; ring.
  by rewrite !E_sub !E_scal !change_measure // !E_ratio //; ring.
apply: E_le => // y Hy; have Hc := ratio_ge0 K M Hy.
rewrite feps_touch //.
have := feps_le el eh (ratio pi alpha y) (ratio pik alpha y) (r y - b); lra.
Qed.

(** With the centre 1 in place of [pik/alpha] the gain has a price, measured at [pik] alone: zero
    where [pik/alpha] lies inside the band. *)
Theorem unit_centre_price alpha pi pik r b el eh : dist pi -> dist pik -> dist alpha ->
  abscont pi alpha -> abscont pik alpha ->
  E alpha (fun y => feps el eh (ratio pi alpha y) 1 (r y - b))
  - E alpha (fun y => feps el eh (ratio pik alpha y) 1 (r y - b))
  - E alpha (fun y => ratio pik alpha y * (r y - b) - feps el eh (ratio pik alpha y) 1 (r y - b))
  <= E pi r - E pik r.
Proof.
move=> P K M A A'.
have J q : dist q -> abscont q alpha -> E alpha (fun y => ratio q alpha y * (r y - b)) = E q r - b.
  by move=> D C; rewrite (change_measure (fun y => r y - b) C) E_sub E_const.
have H : E alpha (fun y => feps el eh (ratio pi alpha y) 1 (r y - b)) <= E pi r - b.
  by rewrite -J //; apply: E_le => // y _; exact: feps_le.
by rewrite (E_sub alpha (fun y => ratio pik alpha y * (r y - b))) J //; lra.
Qed.

Theorem unit_centre_free el eh c a : 0 <= el -> 0 <= eh -> 1 - el <= c <= 1 + eh -> 0 <= c ->
  c * a - feps el eh c 1 a = 0.
Proof.
move=> He Hf Hc H0; rewrite feps_cases //; last by lra.
rewrite /feps_case; case: RlebP => _; first by rewrite Rmin_left; lra.
by rewrite Rmax_left; [lra|apply: Rmax_lub; lra].
Qed.

Definition clipped el eh alpha r pik pi := E alpha (fun y =>
  feps el eh (ratio pi alpha y) (ratio pik alpha y) (adv alpha r y)).

(** The paper's surrogate, standardised advantages, one prompt. *)
Theorem minorise_maximise alpha pi pik r el eh : dist pi -> dist pik -> dist alpha ->
  abscont pi alpha -> abscont pik alpha -> 0 <= el -> 0 <= eh ->
  sigma * (clipped el eh alpha r pik pi - clipped el eh alpha r pik pik) <= E pi r - E pik r.
Proof.
move=> P K M A A' He Hf; rewrite (improvement_identity _ P K M A A').
apply: Rmult_le_compat_l; first by lra.
rewrite /clipped /surrogate -!E_sub; apply: E_le => // y Hy.
rewrite feps_touch //; last exact: ratio_ge0 Hy.
by have := feps_le el eh (ratio pi alpha y) (ratio pik alpha y) (adv alpha r y); lra.
Qed.

Theorem mm_touch alpha pik r el eh : dist pik -> dist alpha -> 0 <= el -> 0 <= eh ->
  clipped el eh alpha r pik pik = surrogate alpha r pik.
Proof.
move=> K M He Hf; apply: rsum_ext => y; case: (M) => /(_ y) [Hy|<-] _; last by rewrite !Rmult_0_l.
by rewrite feps_touch //; exact: ratio_ge0 Hy.
Qed.

End Improvement.

(** The sharp bound is attained on two points for every [sigma <= 1]. *)
Theorem sharp_attained sigma a p q : 0 < sigma <= 1 -> 0 < a < 1 -> a <= p <= 1 -> a <= q <= 1 ->
  let r := fun b : bool => if b then 1 else 0 in
  surrogate sigma (bern a) r (bern p)
    - Rabs (1 - sigma) / sigma * (1 - 0) * tv (bern p) (bern a)
    - (1 - 0) * tv (bern q) (bern a) = E (bern p) r - E (bern q) r.
Proof.
move=> Hs Ha Hp Hq r.
have A x : abscont (bern x) (bern a) by case; rewrite /bern; lra.
have T x : a <= x <= 1 -> tv (bern x) (bern a) = x - a.
  move=> Hx; rewrite /tv rsum_bool /bern Rabs_pos_eq; last by lra.
  by rewrite Rabs_left1; lra.
rewrite surrogate_eq //; try (by apply: bern_dist; lra); last by lra.
rewrite !T // !E_bern /r Rabs_pos_eq; last by lra.
by field; lra.
Qed.

(** The proposal's Theorem 1 fails as stated: the KL is zero and the reward drops by one. *)
Theorem proposal_theorem1_false :
  let r := fun b : bool => if b then 1 else 0 in
  [/\ kl (bern 0) (bern 0) = 0, E (bern 1) r = 1 & E (bern 0) r = 0].
Proof.
split; rewrite ?E_bern; try lra.
rewrite /kl rsum_bool /ratio /bern; have -> : (1 - 0) / (1 - 0) = 1 by field.
by rewrite ln_1; lra.
Qed.

(** The published Theorem 1 fails for [sigma > 1]: two points, [alpha] uniform. *)
Theorem published_false_sigma_gt1 sigma : 1 < sigma ->
  let r := fun b : bool => if b then 0 else 1 in
  exists pi alpha : bool -> R, [/\ dist pi, dist alpha, abscont pi alpha &
    E pi r - E alpha r
    < surrogate sigma alpha r pi - 2 * ((1 - sigma) / sigma) * tv pi alpha
      - 2 * tv alpha alpha].
Proof.
move=> Hs r; exists (bern (4/10)), (bern (1/2)).
have A : abscont (bern (4/10)) (bern (1/2)) by case; rewrite /bern; lra.
have P : dist (bern (4/10)) by apply: bern_dist; lra.
have M : dist (bern (1/2)) by apply: bern_dist; lra.
split => //; rewrite surrogate_eq //; last by lra.
rewrite tv_refl !E_bern /r /tv !rsum_bool /bern.
rewrite Rabs_left1; last by lra.
rewrite Rabs_pos_eq; last by lra.
have -> : (4 / 10 * 0 + (1 - 4 / 10) * 1 - (1 / 2 * 0 + (1 - 1 / 2) * 1)) / sigma
  = / sigma / 10 by field; lra.
have -> : (1 - sigma) / sigma = / sigma - 1 by field; lra.
have : / sigma < 1 by rewrite -Rinv_1; apply: Rinv_lt_contravar; lra.
have : 0 < / sigma by apply: Rinv_0_lt_compat; lra.
by lra.
Qed.

(** ... and off the support, for every [sigma] between two thirds and one: the sampler draws the
    one outcome that is rewarded, the policy the other. *)
Theorem published_false_off_support sigma : 2 / 3 < sigma <= 1 ->
  let r := fun b : bool => if b then 1 else 0 in
  E (bern 0) r - E (bern 1) r
  < surrogate sigma (bern 1) r (bern 0) - 2 * ((1 - sigma) / sigma) * tv (bern 0) (bern 1)
    - 2 * tv (bern 1) (bern 1).
Proof.
move=> Hs r; rewrite tv_refl /surrogate /adv !E_bern /r /ratio /tv rsum_bool /bern.
rewrite Rabs_left1; last by lra.
rewrite Rabs_pos_eq; last by lra.
have H : (1 - sigma) / sigma < / 2.
  by apply: (Rmult_lt_reg_r sigma); [lra|rewrite /Rdiv Rmult_assoc Rinv_l; lra].
rewrite (_ : 0 / 1 = 0); last by field.
move: ((1 - sigma) / sigma) H => q H; lra.
Qed.
