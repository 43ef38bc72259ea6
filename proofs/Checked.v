(** A run's certificates, checked by computation: [ogrpo certify RUN --coq] writes the instances.

    Values, bound and delta are rationals with the one denominator [scale] or their own. The wealth
    is computed in integers that are rounded down, so that what is accepted was won. *)
Require Import Reals ZArith Lra.
From mathcomp Require Import all_ssreflect.
From OGRPO Require Import Prob Anytime Certificate.

Set Implicit Arguments.
Unset Strict Implicit.
Unset Printing Implicit Defensive.

Open Scope R_scope.

(** A server period: SHA-256 of both weights, the claim, and the values of the draws in order. *)
Record period := Period {
  old_weights : Z; new_weights : Z; delta_num : Z; delta_den : Z; scale : Z; bound : Z;
  gains : seq Z }.

(** The stakes of [ogrpo.loop.certify], in twentieths. *)
Definition stakes : seq Z := [:: 1; 2; 4; 8; 16]%Z.
Definition stake (k : 'I_5) := IZR (nth 0%Z stakes k) / 20.
Definition delta_of c := IZR (delta_num c) / IZR (delta_den c).
Definition bound_of c := IZR (bound c) / IZR (scale c).

(** What [a] grows to at the stake [n]/20 against the bound, never above the truth. *)
Fixpoint won c n (xs : seq Z) a : Z := if xs is x :: xs' then
  won c n xs' (a * (20 * scale c + n * x) / (20 * scale c + n * bound c))%Z else a.

Definition fixed_one : Z := 2 ^ 192.
Definition total_won c := foldr (fun n t => won c n (gains c) fixed_one + t)%Z 0%Z stakes.

(** A checksum of all the numbers: another number at one place is another sum. It guards against
    damage and not against forgers, who can compute it anew. *)
Definition seal c := foldl (fun a x => Z.land (a * 18446744073709551629 + x) (2 ^ 320 - 1))%Z 0%Z
  [:: old_weights c, new_weights c, delta_num c, delta_den c, scale c, bound c & gains c].

Definition accepted c sum := [&& (0 <? scale c)%Z, (- scale c <? bound c)%Z, (0 <? delta_num c)%Z,
  (0 <? delta_den c)%Z, (5 * fixed_one * delta_den c <=? total_won c * delta_num c)%Z & (seal c =? sum)%Z].

(** The values along a history, past and outcome by past and outcome. *)
Fixpoint values_along (V : Type) (X : seq V -> V -> R) past h : seq R :=
  if h is v :: h' then X past v :: values_along X (rcons past v) h' else [::].

(** What the numbers say, whatever completions, policies, samplers and prompts are: the improvement,
    averaged over the draws, is at least the bound, or an event occurred that was settled beforehand
    and has a chance of at most delta. A draw after the past [h] has the law [alpha h]; its ratios are
    to [mix h]. The two are the same, or both policies draw from prompts of the same law in the shares
    of the mixture ([Balance.mixture_mean]), so that at a round's end the means add up to the same. *)
Definition certified c := forall (V : finType) (alpha mix pi pik r : seq V -> V -> R) (el eh : R),
  (forall h, dist (alpha h)) -> (forall h, dist (mix h)) ->
  (forall h, dist (pi h)) -> (forall h, dist (pik h)) ->
  0 <= el -> 0 <= eh -> (forall h v, 0 <= r h v <= 1) ->
  let X := gaps mix pi pik r el eh 0 1 in
  let unlikely := refuted alpha X (fun=> / 5) stake (delta_of c) in
  (forall n, chance alpha n unlikely <= delta_of c) /\
  forall h, (0 < size h)%N -> values_along X [::] h = [seq IZR x / IZR (scale c) | x <- gains c] ->
    running_mean alpha X h <= running_mean mix X h -> bound_of c <= improvement pi pik r h \/ unlikely h.

Lemma stake_ge k : 0 <= stake k.
Proof. by case: k => [[|[|[|[|[|k]]]]] Hk] //; rewrite /stake /=; lra. Qed.
Lemma stake_lt k : stake k * 1 < 1.
Proof. by case: k => [[|[|[|[|[|k]]]]] Hk] //; rewrite /stake /=; lra. Qed.

Lemma won_le c n (V : finType) (X : seq V -> V -> R) (b : R) past h xs a :
  b = IZR n / 20 -> 0 <= b < 1 -> (0 < scale c)%Z -> (- scale c < bound c)%Z ->
  (forall h v, - (1) <= X h v) -> values_along X past h = [seq IZR x / IZR (scale c) | x <- xs] ->
  IZR (won c n xs a)
  <= IZR a * (prod_along (fun h v => 1 + b * X h v) past h / (1 + b * bound_of c) ^ size h).
Proof.
move=> Eb Hb /IZR_lt Hs /IZR_lt Hm HX; rewrite opp_IZR in Hm.
elim: h past xs a => [|v h IH] past [|x xs] a //=; first by move=> _; right; field.
case=> Ex /IH-/(_ (a * (20 * scale c + n * x) / (20 * scale c + n * bound c))%Z) H; apply: Rle_trans H _.
have E20 y : IZR (20 * scale c + n * y) = 20 * IZR (scale c) * (1 + b * (IZR y / IZR (scale c))).
  by rewrite plus_IZR !mult_IZR Eb; field; lra.
have Pm : 0 < 1 + b * bound_of c.
  have : - 1 < bound_of c; last by nra.
  apply: (Rmult_lt_reg_r (IZR (scale c))) => //.
  by rewrite /bound_of /Rdiv Rmult_assoc Rinv_l; lra.
have Px : 0 <= prod_along (fun h v => 1 + b * X h v) (rcons past v) h.
  by apply: prod_along_ge0 => h' u; have := HX h' u; nra.
set p := prod_along _ _ _ in Px *; set d := (_ + _ * bound c)%Z.
have Hd : 0 < IZR d by rewrite E20 -/(bound_of c); apply: Rmult_lt_0_compat; lra.
have Hp : 0 < (1 + b * bound_of c) ^ size h by exact: pow_lt.
have -> : IZR a * ((1 + b * X past v) * p / ((1 + b * bound_of c) * (1 + b * bound_of c) ^ size h))
  = IZR (a * (20 * scale c + n * x)) / IZR d * (p / (1 + b * bound_of c) ^ size h).
  by rewrite mult_IZR !E20 -/(bound_of c) -Ex; field; lra.
apply: Rmult_le_compat_r.
  by apply: Rmult_le_pos => //; left; exact: Rinv_0_lt_compat.
apply: (Rmult_le_reg_l (IZR d)) => //; rewrite -mult_IZR.
have -> : IZR d * (IZR (a * (20 * scale c + n * x)) / IZR d) = IZR (a * (20 * scale c + n * x)).
  by field; lra.
by apply: IZR_le; apply: Z.mul_div_le; exact: lt_IZR.
Qed.

Theorem accepted_certified c sum : accepted c sum -> certified c.
Proof.
case/andP => /Z.ltb_lt Hs /and5P [] /Z.ltb_lt Hm /Z.ltb_lt Hn /Z.ltb_lt Hd /Z.leb_le Ht _.
move=> V alpha mix pi pik r el eh A M P K He Hf Hr X unlikely.
have Rn := IZR_lt _ _ Hn; have Rd := IZR_lt _ _ Hd.
have D0 : 0 < delta_of c by exact: Rdiv_lt_0_compat.
have X1 h v : - (1) <= X h v by have := gaps_ge P K M He Hf Rlt_0_1 Hr h v; rewrite Rminus_0_r.
have Q : dist (fun _ : 'I_5 => / 5).
  split=> [k|]; first by lra.
  by rewrite !big_ord_recl big_ord0; lra.
split=> [n|h Hh Hv Hm']; first exact: (anytime_refuted A X1 Q stake_ge stake_lt).
case: (Rle_lt_dec (bound_of c) (improvement pi pik r h)) => H; [by left|right].
rewrite /unlikely /refuted Hh /=; apply/RlebP.
have R1 : running_mean mix X h <= improvement pi pik r h by exact: (gaps_mean P K M He Hf Hr).
have R2 := running_mean_ge A X1 Hh.
apply: (Rle_trans _ (wealth X (fun=> / 5) stake (bound_of c) h)); last first.
  by apply: (wealth_decreases X1 Q stake_ge stake_lt); lra.
have U : 0 < IZR fixed_one by exact: IZR_lt.
have W (k : 'I_5) : IZR (won c (nth 0%Z stakes k) (gains c) fixed_one)
  <= IZR fixed_one * (growth X (stake k) h / (1 + stake k * bound_of c) ^ size h).
  by apply: won_le => //; have := stake_ge k; have := stake_lt k; lra.
have {W} : IZR (total_won c) <= 5 * IZR fixed_one * wealth X (fun=> / 5) stake (bound_of c) h.
  move: U W; rewrite /total_won /=; move: fixed_one => u U W; rewrite !plus_IZR.
  have -> : 5 * IZR u * wealth X (fun=> / 5) stake (bound_of c) h = \rsum_k (IZR u
    * (growth X (stake k) h / (1 + stake k * bound_of c) ^ size h)).
    by rewrite /wealth /E rsum_scal rsum_scal; field.
  apply: (Rle_trans _ (\rsum_k IZR (won c (nth 0%Z stakes (k : 'I_5)) (gains c) u))).
    by right; rewrite !big_ord_recl big_ord0.
  by apply: rsum_le => k; exact: W.
move: (wealth _ _ _ _ _) (total_won c) fixed_one Ht U => w t u Ht U Hw.
apply: (Rmult_le_reg_l (5 * IZR u * IZR (delta_num c))); first by nra.
have -> : 5 * IZR u * IZR (delta_num c) * / delta_of c = IZR (5 * u * delta_den c).
  by rewrite !mult_IZR /delta_of; field; lra.
apply: Rle_trans (IZR_le _ _ Ht) _; rewrite mult_IZR.
have -> : 5 * IZR u * IZR (delta_num c) * w = 5 * IZR u * w * IZR (delta_num c) by ring.
by apply: Rmult_le_compat_r => //; lra.
Qed.
