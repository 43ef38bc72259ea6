(** A finite-sample certificate that an update improved the expected reward: values whose mean never
    exceeds the improvement, and the betting bound of [Anytime] on that mean. *)
Require Import Reals Lra Psatz.
From mathcomp Require Import all_ssreflect.
From OGRPO Require Import Prob Calculus Divergence Importance Clip Improvement Anytime.

Set Implicit Arguments.
Unset Strict Implicit.
Unset Printing Implicit Defensive.

Open Scope R_scope.

(** The best rate, were the second moment known: the radius takes Bernstein's form. *)
Theorem bernstein_radius B L q s : 0 < B -> 0 < L -> 0 < q -> 0 < s ->
  s * s * q = 2 * L * (B * B) -> let l := s / (1 + s) in
  0 < l < 1 /\ B * L / l + psi l / (l * B) * q <= B * L + sqrt (2 * L * q).
Proof.
move=> HB HL Hq Hs E1 l.
have S1 : 0 < / (1 + s) by apply: Rinv_0_lt_compat; lra.
have L1 : 1 - l = / (1 + s) by rewrite /l; field; lra.
have L0 : 0 < l by apply: Rmult_lt_0_compat.
have -> : 2 * L * q = s * q / B * (s * q / B).
  have -> : s * q / B * (s * q / B) = s * s * q * q / (B * B) by field; lra.
  by rewrite E1; field; lra.
rewrite sqrt_square; last by left; apply: Rdiv_lt_0_compat => //; nra.
split; first by lra.
have Hp : psi l / (l * B) * q <= l * l / (2 * (1 - l)) / (l * B) * q.
  apply: Rmult_le_compat_r; first by lra.
  apply: Rmult_le_compat_r; last by apply: psi_le; lra.
  by left; apply: Rinv_0_lt_compat; nra.
have -> : B * L / l = B * L + s * q / (2 * B).
  have -> : L = s * s * q / (2 * (B * B)) by rewrite E1; field; lra.
  by rewrite /l; field; lra.
move: Hp; have -> : l * l / (2 * (1 - l)) / (l * B) * q = s * q / (2 * B).
  by rewrite L1 /l; field; lra.
have -> : s * q / B = s * q / (2 * B) + s * q / (2 * B) by field; lra.
lra.
Qed.

(** ** The values that the certificate averages *)
Section Gap.
Variable Y : finType.
Implicit Types (alpha pi pik r : Y -> R).

(** The clipped surrogate's increase, with the lowest reward as the baseline, plus a control
    variate of mean at most zero that pays for the staleness of the centre. *)
Definition gap el eh lo hi (x c v : R) :=
  feps el eh x c (v - lo) - c * (v - lo) + (hi - lo) * (c - 1).

(** It is bounded below whatever the ratios are. *)
Theorem gap_ge el eh lo hi x c (v : R) : 0 <= el -> 0 <= eh -> 0 <= x -> 0 <= c -> lo <= v <= hi ->
  - (hi - lo) <= gap el eh lo hi x c v.
Proof.
move=> He Hf Hx Hc Hr; rewrite /gap feps_cases // /feps_case; case: RlebP => H; last by lra.
have : 0 <= Rmin x (c + eh) * (v - lo) by apply: Rmult_le_pos; [apply: Rmin_glb; lra|lra].
have : 0 <= c * (hi - v) by apply: Rmult_le_pos; lra.
lra.
Qed.

(** Its mean never exceeds the improvement; no support assumption is needed. *)
Theorem gap_mean el eh lo hi alpha pi pik r : 0 <= el -> 0 <= eh ->
  dist pi -> dist pik -> dist alpha -> (forall y, lo <= r y <= hi) ->
  E alpha (fun y => gap el eh lo hi (ratio pi alpha y) (ratio pik alpha y) (r y))
  <= E pi r - E pik r.
Proof.
move=> He Hf P K M H.
apply: (Rle_trans _ (E alpha (fun y => ratio pi alpha y * (r y - lo)
   + ratio pik alpha y * (hi - r y) - (hi - lo)))).
  apply: E_le => // y _; rewrite /gap.
  have := feps_le el eh (ratio pi alpha y) (ratio pik alpha y) (r y - lo); lra.
have H1 : forall y, 0 <= r y - lo by move=> y; have := H y; lra.
have H2 : forall y, 0 <= hi - r y by move=> y; have := H y; lra.
have C1 := change_measure_le P M H1; have C2 := change_measure_le K M H2.
rewrite (E_sub pi) (E_const _ P) in C1; rewrite (E_sub pik) (E_const _ K) in C2.
rewrite (E_sub alpha) E_add (E_const _ M); lra.
Qed.

(** At [pi = pik] the clip is inactive and only the control variate is left: on policy, zero. *)
Theorem gap_same el eh lo hi c (v : R) : 0 <= el -> 0 <= eh -> 0 <= c -> gap el eh lo hi c c v = (hi - lo) * (c - 1).
Proof. by move=> He Hf Hc; rewrite /gap feps_touch //; ring. Qed.

(** Any constant baseline [b] serves as well when the ratios are known to be at most [R]. *)
Theorem mm_gap_ge el eh x c a R A : 0 <= el -> 0 <= eh -> 0 <= x <= R -> 0 <= c <= R -> Rabs a <= A ->
  - (A * R) <= feps el eh x c a - c * a.
Proof.
move=> He Hf Hx Hc /Rabs_le_between Ha; rewrite feps_cases //; last by lra.
rewrite /feps_case; case: RlebP => H.
  have : 0 <= Rmin x (c + eh) * a by apply: Rmult_le_pos => //; apply: Rmin_glb; lra.
  by nra.
have Hm : Rmax x (Rmax (c - el) 0) <= R by apply: Rmax_lub; [lra|apply: Rmax_lub; lra].
by nra.
Qed.

End Gap.

(** ** The certificate: draw after draw, from prompts, samplers and policies chosen from the past *)
Section Certificate.
Variable V : finType.
Variables (alpha pi pik r : seq V -> V -> R) (el eh lo hi : R).
Hypotheses (P : forall h, dist (pi h)) (K : forall h, dist (pik h)) (M : forall h, dist (alpha h)).
Hypotheses (He : 0 <= el) (Hf : 0 <= eh) (Hw : lo < hi) (Hr : forall h v, lo <= r h v <= hi).
Variables (T : finType) (q b : T -> R).
Hypotheses (Q : dist q) (b_ge : forall k, 0 <= b k) (b_lt : forall k, b k * (hi - lo) < 1).

(** The value of a draw; what the sampler never draws has none. *)
Definition gaps h v := if Rltb 0 (alpha h v) then
  gap el eh lo hi (ratio (pi h) (alpha h) v) (ratio (pik h) (alpha h) v) (r h v) else 0.

(** The improvement, averaged over the draws so far. *)
Definition improvement h :=
  sum_along (fun h _ => E (pi h) (r h) - E (pik h) (r h)) [::] h / INR (size h).

Lemma gaps_ge h v : - (hi - lo) <= gaps h v.
Proof.
rewrite /gaps; case: RltbP => Hv; last by lra.
by apply: gap_ge => //; exact: ratio_ge0.
Qed.

Lemma gaps_mean h : running_mean alpha gaps h <= improvement h.
Proof.
apply: Rmult_le_compat_r.
  case: h => [|v h] /=; first by rewrite Rinv_0; lra.
  by left; apply: Rinv_0_lt_compat; apply: (lt_0_INR (size h).+1); apply/ltP.
elim: h [::] => [|v h IH] past /=; first by lra.
apply: Rplus_le_compat; last exact: IH.
apply: Rle_trans (gap_mean He Hf (P past) (K past) (M past) (Hr past)); right.
by apply: E_ext => y Hy; rewrite /gaps; case: RltbP => //; case: (M past) => /(_ y); lra.
Qed.

Theorem certificate_anytime (bound : seq V -> R) delta n : 0 < delta ->
  (forall h, - (hi - lo) < bound h -> / delta <= wealth gaps q b (bound h) h) ->
  chance alpha n (fun h => (0 < size h)%N && Rltb (improvement h) (bound h)) <= delta.
Proof.
move=> Hd Hb; apply: Rle_trans (anytime_confidence M gaps_ge Q b_ge b_lt n Hd Hb).
apply: chance_le => // h /andP [Hn /RltbP H]; rewrite Hn /=; apply/RltbP.
exact: Rle_lt_trans (gaps_mean h) H.
Qed.

End Certificate.
