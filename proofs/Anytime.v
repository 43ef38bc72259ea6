(** Draws in sequence, each chosen from the past: Ville's inequality and betting on finite trees.

    A history is the sequence of outcomes so far. The law [p h] of the next outcome, the value
    [X h v] that is then observed and the moment to stop may all depend on the history [h], so that
    policies, samplers and ends of periods that follow the data are covered. *)
Require Import Reals Lra Psatz.
From mathcomp Require Import all_ssreflect.
From OGRPO Require Import Prob Calculus Divergence TokenSurrogate.

Set Implicit Arguments.
Unset Strict Implicit.
Unset Printing Implicit Defensive.

Open Scope R_scope.

Section Histories.
Variable V : finType.
Implicit Types (h past : seq V) (v : V) (A : seq V -> bool).

(** Whether some prefix of the history lies in [A], the empty one and the whole included. *)
Definition reached A h := has A [seq take j h | j <- iota 0 (size h).+1].

Arguments reached : simpl never.

Lemma reached_rcons A h v : reached A (rcons h v) = reached A h || A (rcons h v).
Proof.
rewrite /reached size_rcons -(addn1 (size h).+1) iotaD map_cat has_cat; congr (_ || _).
  congr (has _ _); apply/eq_in_map => j.
  by rewrite mem_iota => /andP [_ H]; rewrite -cats1 takel_cat // -ltnS.
by rewrite /= orbF add0n take_oversize // size_rcons.
Qed.

Variable p : seq V -> V -> R.
Hypothesis P : forall h, dist (p h).

(** [P(some prefix of the first n outcomes lies in A)]. *)
Definition chance n A := rollout n p (fun h => if reached A h then 1 else 0) [::].

Lemma rollout_le n (F G : seq V -> R) h : (forall h, F h <= G h) ->
  rollout n p F h <= rollout n p G h.
Proof. by move=> H; elim: n h => [|n IH] h //=; apply: E_le => // v _; exact: IH. Qed.

Lemma chance_le n A A' : (forall h, A h -> A' h) -> chance n A <= chance n A'.
Proof.
move=> H; apply: rollout_le => h; case: (boolP (reached A h)) => [R|_]; last first.
  by case: (reached A' h); lra.
by rewrite (_ : reached A' h); [lra|apply: sub_has R].
Qed.

(** Ville's inequality: a nonnegative supermartingale ever reaches [c] with probability at most
    its initial value over [c]. *)
Theorem ville (M : seq V -> R) c n : 0 < c -> (forall h, 0 <= M h) ->
  (forall h, E (p h) (fun v => M (rcons h v)) <= M h) ->
  c * chance n (fun h => Rleb c (M h)) <= M [::].
Proof.
move=> Hc M0 Sup; set A := fun h => Rleb c (M h).
have one k h : rollout k p (fun h => if reached A h then 1 else 0) h <= 1.
  have F01 h' : 0 <= (if reached A h' then 1 else 0) <= 1 by case: (reached A h'); lra.
  by case: (rollout_between F01 k h P).
suff K k h : (reached A h -> A h) -> c * rollout k p (fun h => if reached A h then 1 else 0) h <= M h.
  by apply: K; rewrite /reached /= orbF.
elim: k h => [|k IH] h HA /=.
  by case: ifP => [/HA /RlebP|_]; have := M0 h; lra.
case: (boolP (reached A h)) => R.
  have /RlebP := HA R; apply: Rle_trans; rewrite -[X in _ <= X]Rmult_1_r.
  by apply: Rmult_le_compat_l; [lra|exact: (one k.+1 h)].
apply: Rle_trans (Sup h); rewrite -E_scal; apply: E_le => // v _.
by apply: IH; rewrite reached_rcons (negPf R).
Qed.

(** Products and sums along a history, of a function of past and outcome. *)
Fixpoint prod_along (f : seq V -> V -> R) past h : R :=
  if h is v :: h' then f past v * prod_along f (rcons past v) h' else 1.
Fixpoint sum_along (f : seq V -> V -> R) past h : R :=
  if h is v :: h' then f past v + sum_along f (rcons past v) h' else 0.

Lemma prod_along_rcons f past h v :
  prod_along f past (rcons h v) = prod_along f past h * f (past ++ h) v.
Proof.
elim: h past => [|u h IH] past /=; first by rewrite cats0; ring.
by rewrite IH cat_rcons; ring.
Qed.

Lemma prod_along_ge0 f past h : (forall h v, 0 <= f h v) -> 0 <= prod_along f past h.
Proof.
move=> H; elim: h past => [|v h IH] past /=; first by lra.
by apply: Rmult_le_pos; [exact: H|exact: IH].
Qed.

Lemma prod_along_gt0 f past h : (forall h v, 0 < f h v) -> 0 < prod_along f past h.
Proof.
move=> H; elim: h past => [|v h IH] past /=; first by lra.
by apply: Rmult_lt_0_compat; [exact: H|exact: IH].
Qed.

(** [exp(sum g) <= prod f] where [exp g <= f] at each step. *)
Lemma exp_sum_along f g past h : (forall h v, exp (g h v) <= f h v) ->
  exp (sum_along g past h) <= prod_along f past h.
Proof.
move=> H; elim: h past => [|v h IH] past /=; first by rewrite exp_0; lra.
rewrite exp_plus; apply: Rmult_le_compat; try by left; exact: exp_pos.
  exact: H.
exact: IH.
Qed.

(** A product is at most the power of the mean of its factors. *)
Lemma prod_along_power f a past h : 0 < a -> (forall h v, 0 < f h v) ->
  sum_along f past h <= INR (size h) * a -> prod_along f past h <= a ^ size h.
Proof.
move=> Ha H Hs.
have K : prod_along f past h <= a ^ size h * exp (sum_along f past h / a - INR (size h)).
  elim: h past {Hs} => [|v h IH] past.
    by rewrite /= /Rdiv Rmult_0_l Rminus_0_r exp_0; lra.
  rewrite [size _]/= S_INR /=.
  have -> : (f past v + sum_along f (rcons past v) h) / a - (INR (size h) + 1)
    = (f past v / a - 1) + (sum_along f (rcons past v) h / a - INR (size h)) by field; lra.
  rewrite exp_plus; have := exp_ge (f past v / a - 1) => He.
  have Hf : f past v <= a * exp (f past v / a - 1).
    apply: (Rle_trans _ (a * (1 + (f past v / a - 1)))); first by right; field; lra.
    by apply: Rmult_le_compat_l; lra.
  have Hx := prod_along_gt0 (rcons past v) h H; have Hy := H past v.
  apply: (Rle_trans _ (a * exp (f past v / a - 1)
    * (a ^ size h * exp (sum_along f (rcons past v) h / a - INR (size h))))); last by right; ring.
  by apply: Rmult_le_compat; [lra|lra|lra|exact: IH].
apply: Rle_trans K _; rewrite -[X in _ <= X]Rmult_1_r.
apply: Rmult_le_compat_l; first by apply: pow_le; lra.
rewrite -exp_0; case: (Req_dec (sum_along f past h / a - INR (size h)) 0) => [->|N]; first by lra.
left; apply: exp_increasing.
have : sum_along f past h / a <= INR (size h).
  apply: (Rmult_le_reg_r a) => //; have -> : sum_along f past h / a * a = sum_along f past h by field; lra.
  lra.
by lra.
Qed.

Lemma sum_along_affine f (c d : R) past h :
  sum_along (fun h v => c + d * f h v) past h = c * INR (size h) + d * sum_along f past h.
Proof.
elim: h past => [|v h IH] past; first by rewrite /=; ring.
by rewrite [size _]/= S_INR /= IH; ring.
Qed.

(** ** Betting on the mean of values that are bounded from below *)
Variables (X : seq V -> V -> R) (B : R).
Hypothesis B_pos : 0 < B.
Hypothesis X_ge : forall h v, - B <= X h v.

(** The values' conditional expectations, and their mean so far. *)
Definition expected h := E (p h) (X h).
Definition running_mean h := sum_along (fun h _ => expected h) [::] h / INR (size h).

Lemma expected_ge h : - B <= expected h.
Proof. by rewrite -(E_const (- B) (P h)); apply: E_le => // v _; exact: X_ge. Qed.

Lemma running_mean_ge h : (0 < size h)%N -> - B <= running_mean h.
Proof.
move=> Hn; have n0 : 0 < INR (size h) by apply: lt_0_INR; apply/ltP.
have K past : INR (size h) * - B <= sum_along (fun h _ => expected h) past h.
  elim: h past {Hn n0} => [|v h IH] past; first by rewrite /=; lra.
  by rewrite [size _]/= S_INR /=; have := IH (rcons past v); have := expected_ge past; lra.
apply: (Rmult_le_reg_l (INR (size h))) => //; apply: Rle_trans (K [::]) _.
by right; rewrite /running_mean; field; lra.
Qed.

(** What a gambler has who started with one and stakes the share [b] at every step. *)
Definition growth b h := prod_along (fun h v => 1 + b * X h v) [::] h.
(** ... with the stake shared by the bets [b k], against a mean of [m] ... *)
Variables (K : finType) (q b : K -> R).
Hypotheses (Q : dist q) (b_ge : forall k, 0 <= b k) (b_lt : forall k, b k * B < 1).
Definition wealth m h := E q (fun k => growth (b k) h / (1 + b k * m) ^ size h).
(** ... and against the conditional means themselves, which nobody knows. *)
Definition fair h := E q (fun k => growth (b k) h
  / prod_along (fun h _ => 1 + b k * expected h) [::] h).

Lemma stake_pos k x : - B <= x -> 0 < 1 + b k * x.
Proof. by move=> H; have := b_ge k; have := b_lt k; nra. Qed.

Lemma growth_ge0 k h : 0 <= growth (b k) h.
Proof. by apply: prod_along_ge0 => h' v; left; apply: stake_pos; exact: X_ge. Qed.

Lemma means_pos k h : 0 < prod_along (fun h _ => 1 + b k * expected h) [::] h.
Proof. by apply: prod_along_gt0 => h' v; apply: stake_pos; exact: expected_ge. Qed.

Lemma fair_ge0 h : 0 <= fair h.
Proof.
apply: E_ge0 => // k _; apply: Rmult_le_pos; first exact: growth_ge0.
by left; apply: Rinv_0_lt_compat; exact: means_pos.
Qed.

(** The unknown game is fair, so that Ville's inequality applies. *)
Theorem betting_is_fair h : E (p h) (fun v => fair (rcons h v)) = fair h.
Proof.
rewrite /fair; transitivity (E q (fun k => E (p h) (fun v => growth (b k) (rcons h v)
   / prod_along (fun h _ => 1 + b k * expected h) [::] (rcons h v)))).
  rewrite /E; rewrite (rsum_ext (g := fun v => \rsum_k p h v * (q k * (growth (b k) (rcons h v)
     / prod_along (fun h _ => 1 + b k * expected h) [::] (rcons h v))))); last first.
    by move=> v; rewrite rsum_scal.
  rewrite rsum_exchange; apply: rsum_ext => k; rewrite -rsum_scal.
  by apply: rsum_ext => v; ring.
apply: E_eq => k; have H1 := means_pos k h; have H2 := stake_pos k (expected_ge h).
pose c := growth (b k) h / prod_along (fun h _ => 1 + b k * expected h) [::] h
  / (1 + b k * expected h).
rewrite (E_eq _ (g := fun v => c + c * b k * X h v)).
  by rewrite E_add E_scal E_const // -/(expected h) /c; field; lra.
by move=> v; rewrite /c /growth !prod_along_rcons !cat0s; field; lra.
Qed.

(** Against a larger mean less is won. *)
Theorem wealth_decreases m m' h : - B <= m -> m <= m' -> wealth m' h <= wealth m h.
Proof.
move=> Hm Hmm; apply: E_le => // k _.
apply: Rmult_le_compat_l; first exact: growth_ge0.
have H1 := stake_pos k Hm; have Hb := b_ge k.
apply: Rinv_le_contravar; first by apply: pow_lt.
by apply: pow_incr; nra.
Qed.

(** Against the mean of the conditional means less is won than against themselves. *)
Lemma wealth_le_fair h : wealth (running_mean h) h <= fair h.
Proof.
apply: E_le => // k _; apply: Rmult_le_compat_l; first exact: growth_ge0.
apply: Rinv_le_contravar; first exact: means_pos.
case: (posnP (size h)) => [/size0nil ->|Hn] /=; first by lra.
have n0 : 0 < INR (size h) by apply: lt_0_INR; apply/ltP.
have Hs := sum_along_affine (fun h _ => expected h) 1 (b k) [::] h.
have R1 : sum_along (fun h _ => expected h) [::] h = INR (size h) * running_mean h.
  by rewrite /running_mean; field; lra.
have Hr := running_mean_ge Hn.
apply: prod_along_power; first exact: stake_pos.
  by move=> h' v; apply: stake_pos; exact: expected_ge.
by rewrite Hs R1; lra.
Qed.

(** Ever to have won [1/delta] against the mean of the conditional means is unlikely. *)
Definition refuted delta h := (0 < size h)%N && Rleb (/ delta) (wealth (running_mean h) h).

Lemma anytime_refuted delta n : 0 < delta -> chance n (refuted delta) <= delta.
Proof.
move=> Hd; have Hi : 0 < / delta by exact: Rinv_0_lt_compat.
apply: (Rle_trans _ (chance n (fun h => Rleb (/ delta) (fair h)))).
  apply: chance_le => h /andP [_ /RlebP H]; apply/RlebP.
  exact: Rle_trans (wealth_le_fair h).
have V1 := ville n Hi fair_ge0 (fun h => Req_le _ _ (betting_is_fair h)).
have F0 : fair [::] = 1.
  by rewrite /fair (E_eq q (g := fun=> 1)) ?E_const // => k; rewrite /growth /=; field.
move: V1; rewrite F0 => V1.
have := Rmult_le_compat_l delta _ _ (Rlt_le _ _ Hd) V1.
by rewrite -Rmult_assoc Rinv_r; lra.
Qed.

(** The confidence limit: any number against which the wealth is [1/delta], at every moment at
    once. [bound] may be any rule; at or below [-B] nothing is claimed. *)
Theorem anytime_confidence (bound : seq V -> R) delta n : 0 < delta ->
  (forall h, - B < bound h -> / delta <= wealth (bound h) h) ->
  chance n (fun h => (0 < size h)%N && Rltb (running_mean h) (bound h)) <= delta.
Proof.
move=> Hd Hb; apply: Rle_trans (anytime_refuted n Hd).
apply: chance_le => h /andP [Hn /RltbP Hlt]; rewrite /refuted Hn; apply/RlebP.
have Hr := running_mean_ge Hn.
apply: (Rle_trans _ (wealth (bound h) h)); first by apply: Hb; lra.
by apply: wealth_decreases; lra.
Qed.

(** ** At least as strong, path by path, as a fan of exponential rates *)
Definition observed h := sum_along X [::] h.
Definition observed_sq h := sum_along (fun h v => X h v * X h v) [::] h.

(** Fan, Grama and Liu's limit for the sum of the expectations, at one rate [l]. *)
Definition fan_limit l delta h :=
  observed h - (B * ln (/ delta) / l + psi l / (l * B) * observed_sq h).

Theorem betting_dominates k delta h : (0 < size h)%N -> 0 < delta -> 0 < q k -> 0 < b k ->
  let m := fan_limit (b k * B) (delta * q k) h / INR (size h) in
  - B < m -> / delta <= wealth m h.
Proof.
move=> Hn Hd Hq Hb m Hm; have n0 : 0 < INR (size h) by apply: lt_0_INR; apply/ltP.
set l := b k * B in m Hm *; have Hl : 0 < l < 1.
  by split; [exact: Rmult_lt_0_compat|exact: b_lt].
have Hs : 0 < 1 + b k * m by apply: stake_pos; lra.
have Hdq : 0 < / (delta * q k) by apply: Rinv_0_lt_compat; nra.
apply: (Rle_trans _ (q k * (growth (b k) h / (1 + b k * m) ^ size h))); last first.
  apply: (rsum_ge_term k (f := fun k => q k * (growth (b k) h / (1 + b k * m) ^ size h))) => j.
  case: Q => /(_ j) Q0 _; apply: Rmult_le_pos => //; apply: Rmult_le_pos; first exact: growth_ge0.
  by left; apply: Rinv_0_lt_compat; apply: pow_lt; apply: stake_pos; lra.
have -> : / delta = q k * / (delta * q k) by field; lra.
apply: Rmult_le_compat_l; first by lra.
apply: (Rmult_le_reg_r ((1 + b k * m) ^ size h)); first exact: pow_lt.
have -> : growth (b k) h / (1 + b k * m) ^ size h * (1 + b k * m) ^ size h = growth (b k) h.
  by field; apply: pow_nonzero; lra.
have Hpow : (1 + b k * m) ^ size h <= exp (INR (size h) * (b k * m)).
  elim: (size h) => [|j IH]; first by rewrite /= Rmult_0_l exp_0; lra.
  rewrite S_INR Rmult_plus_distr_r Rmult_1_l exp_plus.
  have He := exp_ge (b k * m); have Hp : 0 <= (1 + b k * m) ^ j by apply: pow_le; lra.
  apply: (Rle_trans _ ((1 + b k * m) ^ j * (1 + b k * m))); first by right; rewrite /=; ring.
  by apply: Rmult_le_compat; lra.
apply: (Rle_trans _ (/ (delta * q k) * exp (INR (size h) * (b k * m)))).
  by apply: Rmult_le_compat_l; lra.
rewrite -{1}(exp_ln _ Hdq) -exp_plus.
have -> : ln (/ (delta * q k)) + INR (size h) * (b k * m)
  = sum_along (fun h v => b k * X h v - psi l * (b k * X h v / l * (b k * X h v / l))) [::] h.
  have -> : INR (size h) * (b k * m) = b k * fan_limit l (delta * q k) h.
    by rewrite /m; field; lra.
  have S2 : sum_along (fun h v => b k * X h v - psi l * (b k * X h v / l * (b k * X h v / l))) [::] h
    = b k * observed h - psi l / (B * B) * observed_sq h.
    rewrite /observed /observed_sq; elim: h [::] {n0 Hn m Hm Hs Hpow} => [|v h IH] past /=; first by ring.
    by rewrite IH /l; field; split; lra.
  rewrite S2 /fan_limit; have -> : b k = l / B by rewrite /l; field; lra.
  by field; lra.
apply: exp_sum_along => h' v; have -> : b k * X h' v = l * (b k * X h' v / l) by field; lra.
have -> : l * (b k * X h' v / l) / l = b k * X h' v / l by field; lra.
apply: fan_exp; first by lra.
have -> : b k * X h' v / l = X h' v / B by rewrite /l; field; split; lra.
apply: (Rmult_le_reg_r B) => //; have -> : X h' v / B * B = X h' v by field; lra.
by have := X_ge h' v; lra.
Qed.

End Histories.
