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
