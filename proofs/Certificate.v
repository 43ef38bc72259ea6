(** A finite-sample certificate that an update improved the expected reward.

    The concentration step needs values bounded from below only: it is the empirical
    Bernstein supermartingale of Howard et al. with the fixed centre zero, and rests on the
    one-sided inequality of Fan, Grama and Liu. *)
Require Import Reals Lra Psatz.
From mathcomp Require Import all_ssreflect.
From OGRPO Require Import Prob Calculus Divergence Importance Clip Improvement.

Set Implicit Arguments.
Unset Strict Implicit.
Unset Printing Implicit Defensive.

Open Scope R_scope.

Lemma exp_rsum (I : finType) (f : I -> R) : exp (\rsum_i f i) = \rprod_i exp (f i).
Proof. by apply: (big_morph exp); [exact: exp_plus|exact: exp_0]. Qed.

(** ** Concentration for independent, not identically distributed draws *)
Section Concentration.
Variables (I Y : finType).
Variables (mu : I -> Y -> R) (X : I -> Y -> R) (B : R).
Hypothesis Mu : forall i, dist (mu i).
Hypothesis B_pos : 0 < B.
Hypothesis X_ge : forall i y, 0 < mu i y -> - B <= X i y.

Definition expected := \rsum_i E (mu i) (X i).
Definition observed (w : {ffun I -> Y}) := \rsum_i X i (w i).
Definition observed_sq (w : {ffun I -> Y}) := \rsum_i X i (w i) * X i (w i).

Lemma mgf_one l : 0 < l < 1 ->
  E (prodd mu) (fun w => exp (\rsum_i (l * ((X i (w i) - E (mu i) (X i)) / B)
    - psi l * (X i (w i) / B * (X i (w i) / B))))) <= 1.
Proof.
move=> Hl.
rewrite (E_eq _ (fun w => exp_rsum _)) (E_prod mu (fun i y =>
  exp (l * ((X i y - E (mu i) (X i)) / B) - psi l * (X i y / B * (X i y / B))))).
apply: (Rle_trans _ (\rprod_i (fun _ : I => 1) i)); last by rewrite big1; [lra|].
suff K : 0 <= \rprod_i E (mu i) (fun y =>
    exp (l * ((X i y - E (mu i) (X i)) / B) - psi l * (X i y / B * (X i y / B))))
  <= \rprod_i (fun _ : I => 1) i by lra.
apply: (big_ind2 (fun x y => 0 <= x <= y)) => [|x1 y1 x2 y2 H1 H2|i _]; first by lra.
  by split; [nra|apply: Rmult_le_compat; lra].
split; first by apply: E_ge0 => // y _; left; exact: exp_pos.
set m := E (mu i) (X i).
rewrite (E_eq (mu i) (g := fun y => exp (- (l * (m / B)))
   * exp (l * (X i y / B) - psi l * (X i y / B * (X i y / B))))); last first.
  by move=> y; rewrite -exp_plus; congr exp; field; lra.
rewrite E_scal; apply: (Rle_trans _ (exp (- (l * (m / B))) * (1 + l * (m / B)))).
  apply: Rmult_le_compat_l; first by left; exact: exp_pos.
  have -> : 1 + l * (m / B) = E (mu i) (fun y => 1 + l / B * X i y).
    by rewrite E_add E_const // E_scal -/m; field; lra.
  apply: E_le => // y Hy; have -> : l / B * X i y = l * (X i y / B) by field; lra.
  apply: fan_exp; first by lra.
  apply: (Rmult_le_reg_r B) => //; have -> : X i y / B * B = X i y by field; lra.
  by have := X_ge Hy; lra.
have H1 := exp_ge (l * (m / B)); have H2 := exp_pos (- (l * (m / B))).
have E1 : exp (- (l * (m / B))) * exp (l * (m / B)) = 1.
  by rewrite -exp_plus Rplus_opp_l exp_0.
by nra.
Qed.

(** The lower confidence limit for [expected], times the number of samples. *)
Definition lower l delta w :=
  observed w - (B * ln (/ delta) / l + psi l / (l * B) * observed_sq w).

Theorem lower_confidence l delta : 0 < l < 1 -> 0 < delta ->
  Pr (prodd mu) (fun w => Rltb expected (lower l delta w)) <= delta.
Proof.
move=> Hl Hd; have PD := prodd_dist Mu.
have K w : l / B * (observed w - expected) - psi l / (B * B) * observed_sq w
  = \rsum_i (l * ((X i (w i) - E (mu i) (X i)) / B) - psi l * (X i (w i) / B * (X i (w i) / B))).
  rewrite /observed /expected /observed_sq -rsum_sub -!rsum_scal -rsum_sub.
  by apply: rsum_ext => i; field; lra.
have M : / delta * Pr (prodd mu) (fun w => Rltb expected (lower l delta w)) <= 1.
  apply: Rle_trans; last exact: (mgf_one Hl).
  apply: markov => // [w|w /RltbP H]; first by left; exact: exp_pos.
  rewrite -K -(exp_ln (/ delta)); last exact: Rinv_0_lt_compat.
  suff : ln (/ delta) < l / B * (observed w - expected) - psi l / (B * B) * observed_sq w.
    by move=> H'; left; exact: exp_increasing.
  move: H; rewrite /lower => H.
  have C : 0 < l / B by apply: Rdiv_lt_0_compat; lra.
  have : 0 < l / B * (observed w
    - (B * ln (/ delta) / l + psi l / (l * B) * observed_sq w) - expected).
    by apply: Rmult_lt_0_compat; lra.
  have -> : l / B * (observed w
    - (B * ln (/ delta) / l + psi l / (l * B) * observed_sq w) - expected)
    = l / B * (observed w - expected) - psi l / (B * B) * observed_sq w - ln (/ delta).
    by field; lra.
  lra.
have := Rmult_le_compat_l delta _ _ (Rlt_le _ _ Hd) M.
by rewrite -Rmult_assoc Rinv_r; lra.
Qed.

End Concentration.

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

(** Union over a finite family: of rates [l k], of candidate updates, or of both. *)
Theorem lower_confidence_family (K I Y : finType) (mu : I -> Y -> R) (X : K -> I -> Y -> R)
  (B : K -> R) (l : K -> R) delta : (0 < #|K|)%N ->
  (forall i, dist (mu i)) -> (forall k, 0 < B k) ->
  (forall k i y, 0 < mu i y -> - B k <= X k i y) -> (forall k, 0 < l k < 1) -> 0 < delta ->
  Pr (prodd mu) (fun w => [exists k,
    Rltb (expected mu (X k)) (lower (X k) (B k) (l k) (delta / INR #|K|) w)]) <= delta.
Proof.
move=> K_pos M HB HX Hl Hd; have k0 : 0 < INR #|K| by apply: lt_0_INR; apply/ltP.
apply: Rle_trans; first exact: Pr_union (prodd_dist M).
apply: (Rle_trans _ (\rsum_k (fun _ : K => delta / INR #|K|) k)).
  apply: rsum_le => k; apply: lower_confidence => //; first exact: HX.
  exact: Rdiv_lt_0_compat.
by rewrite rsum_const; right; field; lra.
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

(** ** The certificate: prompts [i], one draw each (repeat a prompt for its group) *)
Section Certificate.
Variables (I Y : finType).
Variables (alpha pi pik : I -> Y -> R) (r : I -> Y -> R) (el eh lo hi : R).
Hypotheses (P : forall i, dist (pi i)) (K : forall i, dist (pik i)) (M : forall i, dist (alpha i)).
Hypotheses (He : 0 <= el) (Hf : 0 <= eh) (Hw : lo < hi) (Hr : forall i y, lo <= r i y <= hi).

Definition improvement := \rsum_i (E (pi i) (r i) - E (pik i) (r i)).
Definition gaps i y := gap el eh lo hi (ratio (pi i) (alpha i) y) (ratio (pik i) (alpha i) y) (r i y).

Theorem certificate_family (T : finType) (l : T -> R) delta : (0 < #|T|)%N ->
  (forall t, 0 < l t < 1) -> 0 < delta ->
  Pr (prodd alpha) (fun w => [exists t,
    Rltb improvement (lower gaps (hi - lo) (l t) (delta / INR #|T|) w)]) <= delta.
Proof.
move=> T_pos Hl Hd; apply: Rle_trans; last first.
  apply: (@lower_confidence_family T I Y alpha (fun=> gaps) (fun=> hi - lo) l delta) => //.
    by move=> _; lra.
  move=> _ i y Hy; apply: gap_ge => //; exact: ratio_ge0.
apply: Pr_le => [|w /existsP [t /RltbP H]]; first exact: prodd_dist.
apply/existsP; exists t; apply/RltbP; apply: Rle_lt_trans H.
by apply: rsum_le => i; exact: gap_mean.
Qed.

End Certificate.
