(** Masking groups whose rewards do not vary. *)
Require Import Reals Lra Psatz.
From mathcomp Require Import all_ssreflect.
From OGRPO Require Import Prob Calculus Divergence NSample.

Set Implicit Arguments.
Unset Strict Implicit.
Unset Printing Implicit Defensive.

Open Scope R_scope.

Section Masking.
Variables (I Y : finType).
Hypothesis n_pos : (0 < #|I|)%N.
Implicit Types (mu r : Y -> R) (w : {ffun I -> Y}).

Notation n := (nI I).

(** The summed group-mean gradient of one group; [g i w] is the score of member [i]. *)
Definition group_gradient r (g : I -> {ffun I -> Y} -> R) w :=
  \rsum_i (r (w i) - total r w / n) * g i w.

Definition constant_group r w : bool := [forall i, forall j, Rleb (r (w i)) (r (w j))].

Lemma rprod_const (c : R) : \rprod_i (fun _ : I => c) i = c ^ #|I|.
Proof. by rewrite big_const; elim: #|I| => [|k /= ->]. Qed.

Lemma constant_mean r w i : constant_group r w -> total r w / n = r (w i).
Proof.
have n0 := nI_pos n_pos; move=> /forallP H.
have K (j : I) : r (w j) = r (w i).
  by have /forallP/(_ i)/RlebP := H j; have /forallP/(_ j)/RlebP := H i; lra.
by rewrite /total (rsum_ext K) rsum_const -/n; field; lra.
Qed.

(** A zero-variance group contributes nothing, so masking it changes no sum. *)
Theorem zero_variance_gradient r g w : constant_group r w -> group_gradient r g w = 0.
Proof.
by move=> H; apply: rsum_zero => i; rewrite (constant_mean i H) Rminus_diag_eq // Rmult_0_l.
Qed.

Theorem masking_keeps_sum (B : finType) r (g : B -> I -> {ffun I -> Y} -> R)
  (w : B -> {ffun I -> Y}) :
  \rsum_b (if constant_group r (w b) then 0 else group_gradient r (g b) (w b))
  = \rsum_b group_gradient r (g b) (w b).
Proof. by apply: rsum_ext => b; case: ifP => // /zero_variance_gradient ->. Qed.

(** ** Averaging over the survivors *)

Definition survives r w : R := if constant_group r w then 0 else 1.

Lemma survives_eq r w : (forall y, r y = 0 \/ r y = 1) ->
  survives r w = 1 - \rprod_i r (w i) - \rprod_i (1 - r (w i)).
Proof.
move=> Hr; have [i0 _] : exists i : I, true by case/card_gt0P: n_pos => i _; exists i.
have Zero (f : I -> R) i : f i = 0 -> \rprod_i f i = 0.
  by move=> H; rewrite (bigD1 i) //= H Rmult_0_l.
rewrite /survives; case: ifP => [/forallP H|/negbT].
  have K (j : I) : r (w j) = r (w i0).
    by have /forallP/(_ i0)/RlebP := H j; have /forallP/(_ j)/RlebP := H i0; lra.
  case: (Hr (w i0)) => E0.
    rewrite (Zero (fun i => r (w i)) i0) // big1 => [|i _]; last by rewrite K E0; ring.
    ring.
  rewrite (Zero (fun i => 1 - r (w i)) i0) ?E0; last by ring.
  by rewrite big1 => [|i _]; [ring|rewrite K E0].
rewrite negb_forall => /existsP [i]; rewrite negb_forall => /existsP [j /RlebP H].
have [Hi Hj] : r (w i) = 1 /\ r (w j) = 0.
  by case: (Hr (w i)) => Ei; case: (Hr (w j)) => Ej; move: H; rewrite Ei Ej; lra.
rewrite (Zero (fun i => r (w i)) j) // (Zero (fun i => 1 - r (w i)) i) ?Hi; ring.
Qed.

Theorem survival_probability mu r : dist mu -> (forall y, r y = 0 \/ r y = 1) ->
  E (iid (I := I) mu) (survives r)
  = 1 - E mu r ^ #|I| - (1 - E mu r) ^ #|I|.
Proof.
move=> M Hr.
rewrite (E_eq _ (fun w => survives_eq w Hr)) !E_sub E_const; last exact: iid_dist.
rewrite (E_prod (fun=> mu) (fun _ : I => r)) (E_prod (fun=> mu) (fun _ : I => fun y => 1 - r y)).
by rewrite E_sub E_const // !(rprod_const (E mu r)) (rprod_const (1 - E mu r)).
Qed.

(** The conditional mean given survival divides the gradient by the survival probability. *)
Theorem survivors_mean mu r g : dist mu -> (forall y, r y = 0 \/ r y = 1) ->
  E (iid (I := I) mu) (fun w => group_gradient r g w * survives r w)
    / E (iid (I := I) mu) (survives r)
  = E (iid (I := I) mu) (group_gradient r g)
    / (1 - E mu r ^ #|I| - (1 - E mu r) ^ #|I|).
Proof.
move=> M Hr; rewrite survival_probability //; congr (_ / _); apply: E_eq => w.
by rewrite /survives; case: ifP => [/zero_variance_gradient ->|_]; ring.
Qed.

End Masking.
