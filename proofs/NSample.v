(** Groups of independent completions: baselines, group mean, binary rewards. *)
Require Import Reals Lra Psatz.
From mathcomp Require Import all_ssreflect.
From OGRPO Require Import Prob Calculus Divergence Importance.

Set Implicit Arguments.
Unset Strict Implicit.
Unset Printing Implicit Defensive.

Open Scope R_scope.

Section Group.
Variables (I Y : finType).
Hypothesis n_pos : (0 < #|I|)%N.
Implicit Types (mu pi : Y -> R) (r g : Y -> R) (w : {ffun I -> Y}).

Notation n := (nI I).
Notation En mu := (E (iid (I := I) mu)).

(** Here [g] is one coordinate of [rho * grad log pi] (or of [grad log pi] on policy), whose
    mean under [mu] vanishes; [E mu (r g)] is that coordinate of the gradient of J. *)
Definition total r w := \rsum_i r (w i).
Definition others r w (i : I) := \rsum_(j | j != i) r (w j).

Lemma total_others r w (i : I) : total r w = r (w i) + others r w i.
Proof. exact: rsum_D1. Qed.

Lemma others_upd r w (i : I) y : others r (upd w i y) i = others r w i.
Proof. by apply: eq_bigr => j Hj; rewrite upd_other. Qed.

(** Any statistic of the others is an unbiased baseline. *)
Theorem baseline_unbiased mu r g (B : I -> {ffun I -> Y} -> R) : dist mu -> E mu g = 0 ->
  (forall i w y, B i (upd w i y) = B i w) ->
  En mu (fun w => / n * \rsum_i (r (w i) - B i w) * g (w i)) = E mu (fun y => r y * g y).
Proof.
move=> M H0 HB; have n0 := nI_pos n_pos; rewrite E_scal E_sum.
rewrite (rsum_ext (g := fun=> E mu (fun y => r y * g y))) => [|i].
  by rewrite rsum_const -/n; field; lra.
rewrite (E_eq _ (g := fun w => r (w i) * g (w i) - g (w i) * B i w)); last by move=> w; ring.
rewrite E_sub (E_iid_coord (fun y => r y * g y)) // /iid.
by rewrite (E_indep (i := i) g (G := B i)) // H0 Rmult_0_l Rminus_0_r.
Qed.

(** Leave-one-out: the mean reward of the other members. *)
Theorem leave_one_out_unbiased mu r g : dist mu -> E mu g = 0 ->
  En mu (fun w => / n * \rsum_i (r (w i) - others r w i / (n - 1)) * g (w i))
  = E mu (fun y => r y * g y).
Proof.
move=> M H0; apply: (@baseline_unbiased mu r g (fun i w => others r w i / (n - 1))) => // i w y.
by rewrite others_upd.
Qed.

(** The group mean as a baseline shrinks the gradient by [1 - 1/n]. *)
Theorem group_mean_factor mu r g : dist mu -> E mu g = 0 ->
  En mu (fun w => / n * \rsum_i (r (w i) - total r w / n) * g (w i))
  = (1 - / n) * E mu (fun y => r y * g y).
Proof.
move=> M H0; have n0 := nI_pos n_pos; rewrite E_scal E_sum.
rewrite (rsum_ext (g := fun=> (1 - / n) * E mu (fun y => r y * g y))) => [|i].
  by rewrite rsum_const -/n; field; lra.
rewrite (E_eq _ (g := fun w => (1 - / n) * (r (w i) * g (w i)) - / n * (g (w i) * others r w i))).
  rewrite E_sub !E_scal (E_iid_coord (fun y => r y * g y)) // /iid.
  rewrite (E_indep (i := i) g (G := fun w => others r w i)) //; last first.
    by move=> w y; exact: others_upd.
  by rewrite H0 Rmult_0_l Rmult_0_r Rminus_0_r.
by move=> w; rewrite (total_others r w i); field; lra.
Qed.

(** Leave-one-out is [n/(n-1)] times the group mean, sample by sample. *)
Theorem leave_one_out_vs_mean r w i : 1 < n ->
  r (w i) - others r w i / (n - 1) = n / (n - 1) * (r (w i) - total r w / n).
Proof. by move=> H; rewrite (total_others r w i); field; lra. Qed.

(** Off-policy: the same factor with [g = rho s], [s] the score of [pi]. *)
Theorem group_mean_factor_off_policy mu pi r s : dist mu -> abscont pi mu -> E pi s = 0 ->
  En mu (fun w => / n * \rsum_i (r (w i) - total r w / n) * (ratio pi mu (w i) * s (w i)))
  = (1 - / n) * E pi (fun y => r y * s y).
Proof.
move=> M A H0.
rewrite (group_mean_factor r (g := fun y => ratio pi mu y * s y)) // ?change_measure //.
by rewrite -(change_measure (fun y => r y * s y) A); congr (_ * _); apply: E_eq => y; ring.
Qed.

(** Binary rewards, any advantage [A own k] that depends on the own reward and the number [k]
    of successes in the group: the expected gradient is a multiple [c_G] of the true one. *)
Definition c_group (A : R -> R -> R) mu r (i : I) :=
  En mu (fun w => A 1 (1 + others r w i) - A 0 (others r w i)).

Theorem binary_advantage (A : R -> R -> R) mu r g (i : I) : dist mu -> E mu g = 0 ->
  (forall y, r y = 0 \/ r y = 1) ->
  En mu (fun w => A (r (w i)) (total r w) * g (w i))
  = c_group A mu r i * E mu (fun y => r y * g y).
Proof.
move=> M H0 Hr.
rewrite (E_eq _ (g := fun w => (r (w i) * g (w i)) * A 1 (1 + others r w i)
    + (g (w i) - r (w i) * g (w i)) * A 0 (others r w i))); last first.
  move=> w; rewrite (total_others r w i); case: (Hr (w i)) => ->; rewrite ?Rplus_0_l;
    move: (g _) (A 1 _) (A 0 _) => x z u; ring.
rewrite E_add /iid.
rewrite (E_indep (i := i) (fun y => r y * g y) (G := fun w => A 1 (1 + others r w i))) //;
  last by move=> w y; rewrite others_upd.
rewrite (E_indep (i := i) (fun y => g y - r y * g y) (G := fun w => A 0 (others r w i))) //;
  last by move=> w y; rewrite others_upd.
rewrite (E_sub mu g) H0 /c_group /iid.
by rewrite (E_sub _ (fun w : {ffun I -> Y} => A 1 (1 + others r w i))
  (fun w : {ffun I -> Y} => A 0 (others r w i))); ring.
Qed.

End Group.

(** ** The number of successes among the others is binomial *)
Section Binomial.
Variables (I Y : finType).
Implicit Types (mu : Y -> R) (win : pred Y) (w : {ffun I -> Y}) (A : {set I}).

Definition indicator win (y : Y) : R := if win y then 1 else 0.
Definition winners win w (i : I) : {set I} := [set j | (j != i) && win (w j)].

Lemma iter_pow (c : R) k : iter k (Rmult c) 1 = c ^ k.
Proof. by elim: k => [|k /= ->]. Qed.

Lemma iter_plus (c : R) k : iter k (Rplus c) 0 = INR k * c.
Proof. by elim: k => [|k /= ->]; [rewrite Rmult_0_l|case: k => [|k] /=; lra]. Qed.

Lemma others_winners win w i : others (indicator win) w i = INR #|winners win w i|.
Proof.
rewrite /others /indicator -big_mkcondr /= big_const iter_plus Rmult_1_r.
by congr INR; apply: eq_card => j; rewrite !inE.
Qed.

Lemma winners_law mu win i A : dist mu -> i \notin A ->
  E (iid (I := I) mu) (fun w => if winners win w i == A then 1 else 0)
  = E mu (indicator win) ^ #|A| * (1 - E mu (indicator win)) ^ (#|I|.-1 - #|A|).
Proof.
move=> M iA; set p := E mu (indicator win).
pose f (j : I) (y : Y) : R :=
  if j == i then 1 else if j \in A then indicator win y else 1 - indicator win y.
have F w : (if winners win w i == A then 1 else 0) = \rprod_j f j (w j).
  case: eqP => [HA|HA].
    rewrite big1 // => j _; rewrite /f /indicator; case: eqP => // /eqP ji.
    by rewrite -HA inE ji /=; case: (win (w j)); lra.
  have [j Hj] : exists j, (j \in winners win w i) != (j \in A).
    apply/existsP; rewrite -negb_forall; apply/negP => /forallP H; apply: HA.
    by apply/setP => j; apply/eqP.
  have ji : j != i.
    by apply/eqP => E1; move: Hj; rewrite E1 inE eqxx /= (negPf iA).
  rewrite (bigD1 j) //= (_ : f j (w j) = 0) ?Rmult_0_l //.
  move: Hj; rewrite inE ji /= /f /indicator (negPf ji).
  by case: (win (w j)); case: (j \in A) => //= _; lra.
rewrite (E_eq _ F) /iid E_prod.
have -> : \rprod_j E mu (f j)
  = (\big[Rmult/1]_(j in A) p) * (\big[Rmult/1]_(j in ~: (i |: A)) (1 - p)).
  rewrite (big_mkcond (fun j => j \in A)) (big_mkcond (fun j => j \in ~: (i |: A))) -big_split.
  apply: eq_bigr => j _; rewrite /f !inE /=.
  case: eqP => [->|_] /=; first by rewrite (negPf iA) E_const //; ring.
  by case: (j \in A) => /=; [rewrite -/p|rewrite E_sub E_const // -/p]; ring.
rewrite !big_const !iter_pow; congr (_ * _ ^ _).
by rewrite cardsCs setCK cardsU1 iA /= subnDA subn1.
Qed.

Theorem binomial_others mu win (i : I) (h : nat -> R) : dist mu ->
  let p := E mu (indicator win) in
  E (iid (I := I) mu) (fun w => h #|winners win w i|)
  = \big[Rplus/0]_(k < #|I|) (INR 'C(#|I|.-1, k) * (p ^ k * (1 - p) ^ (#|I|.-1 - k)) * h k).
Proof.
move=> M p; pose g k := p ^ k * (1 - p) ^ (#|I|.-1 - k) * h k.
rewrite (E_eq _ (g := fun w => \big[Rplus/0]_(A : {set I})
    ((if winners win w i == A then 1 else 0) * h #|A|))).
  rewrite E_sum.
  transitivity (\big[Rplus/0]_(A : {set I}) \big[Rplus/0]_(k < #|I|)
      (if (i \notin A) && (#|A| == k) then g k else 0)).
    apply: rsum_ext => A; case: (boolP (i \in A)) => iA /=.
      rewrite rsum_zero //.
      rewrite (E_eq _ (g := fun=> 0)); first by rewrite E_const //; exact: iid_dist.
      move=> w; case: eqP => [HA|_]; last by ring.
      by move: iA; rewrite -HA inE eqxx.
    have kA : (#|A| < #|I|)%N.
      rewrite -cardsT; apply: proper_card; rewrite properT.
      by apply/eqP => E1; move: iA; rewrite E1 inE.
    rewrite (rsum_ext (g := fun k : 'I_#|I| => if k == Ordinal kA then g k else 0)); last first.
      by move=> k; rewrite eq_sym -val_eqE.
    rewrite (rsum_single (Ordinal kA) (fun k : 'I_#|I| => g k)) /g /=.
    rewrite (E_eq _ (g := fun w => h #|A| * (if winners win w i == A then 1 else 0))).
      by rewrite E_scal winners_law // -/p Rmult_comm.
    by move=> w; ring.
  rewrite rsum_exchange; apply: rsum_ext => k.
  rewrite -big_mkcond big_const iter_plus /g.
  have -> : #|[pred A : {set I} | (i \notin A) && (#|A| == k)]| = 'C(#|I|.-1, k).
    rewrite -(cardsC1 i) -(cards_draws (~: [set i]) k); apply: eq_card => A.
    by rewrite !inE subsetC sub1set inE.
  by rewrite -!Rmult_assoc.
move=> w; rewrite (rsum_ext (g := fun A => if A == winners win w i then h #|A| else 0)).
  by rewrite rsum_single.
by move=> A; rewrite eq_sym; case: ifP => _; ring.
Qed.

(** [c_G = sum_j Bin(j; G-1, p) [A(1, 1+j) - A(0, j)]]. *)
Theorem c_group_binomial (A : R -> R -> R) mu win (i : I) : dist mu ->
  let p := E mu (indicator win) in
  c_group A mu (indicator win) i
  = \big[Rplus/0]_(k < #|I|) (INR 'C(#|I|.-1, k) * (p ^ k * (1 - p) ^ (#|I|.-1 - k))
      * (A 1 (1 + INR k) - A 0 (INR k))).
Proof.
move=> M p; rewrite -(binomial_others win i (fun k => A 1 (1 + INR k) - A 0 (INR k)) M).
by apply: E_eq => w; rewrite others_winners.
Qed.

End Binomial.
