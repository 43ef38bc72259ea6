(** Evidence from several samplers at once: the balance heuristic (Veach and Guibas 1995). The
    ratios are to the mixture of the samplers, so that no support is assumed and none explodes. *)
Require Import Reals Lra Psatz.
From mathcomp Require Import all_ssreflect.
From OGRPO Require Import Prob Calculus Divergence Importance Mixture.

Set Implicit Arguments.
Unset Strict Implicit.
Unset Printing Implicit Defensive.

Open Scope R_scope.

Section Balance.
Variables (K Y : finType).
Variables (w : K -> R) (mu : K -> Y -> R).
Hypotheses (W : dist w) (Mu : forall k, dist (mu k)).
Notation m := (mixture w mu).

(** Draws of the samplers in the shares [w] are, on average, draws of the mixture. *)
Theorem mixture_mean f : E w (fun k => E (mu k) f) = E m f.
Proof.
rewrite /mixture /E; rewrite (rsum_ext (g := fun k => \rsum_y w k * (mu k y * f y))).
  rewrite rsum_exchange; apply: rsum_ext => y; rewrite Rmult_comm -rsum_scal.
  by apply: rsum_ext => k; ring.
by move=> k; rewrite rsum_scal.
Qed.

(** A ratio to the mixture is at most one over the sampler's share. *)
Theorem balance_ratio k y : 0 < m y -> 0 <= w k * ratio (mu k) m y <= 1.
Proof.
move=> Hm; have Hk : w k * mu k y <= m y.
  apply: (rsum_ge_term k (f := fun k => w k * mu k y)) => j.
  by apply: Rmult_le_pos; [case: W|case: (Mu j)].
have H0 : 0 <= w k * mu k y by apply: Rmult_le_pos; [case: W|case: (Mu k)].
have -> : w k * ratio (mu k) m y = w k * mu k y / m y by rewrite /ratio /Rdiv; ring.
split; first by apply: Rmult_le_pos => //; left; exact: Rinv_0_lt_compat.
by apply: (Rmult_le_reg_r (m y)) => //; rewrite /Rdiv Rmult_assoc Rinv_l; lra.
Qed.

Lemma share_abscont k : 0 < w k -> abscont (mu k) m.
Proof.
move=> Hk y H0; have Z := rsum_eq0 (f := fun k => w k * mu k y).
have N j : 0 <= w j * mu j y by apply: Rmult_le_pos; [case: W|case: (Mu j)].
by case: (Rmult_integral _ _ (Z N H0 k)); lra.
Qed.

(** The value of a draw: its mean is the gain from sampler [j] to sampler [i], whoever else drew. *)
Definition balanced i j (r : Y -> R) b y := (ratio (mu i) m y - ratio (mu j) m y) * (r y - b).

Theorem balance_mean i j r b : 0 < w i -> 0 < w j ->
  E m (balanced i j r b) = E (mu i) r - E (mu j) r.
Proof.
move=> Hi Hj; have Ai := share_abscont Hi; have Aj := share_abscont Hj.
rewrite (E_eq _ (g := fun y => ratio (mu i) m y * (r y - b) - ratio (mu j) m y * (r y - b))).
  by rewrite E_sub !change_measure // !E_sub !E_const //; ring.
by move=> y; rewrite /balanced; ring.
Qed.

Theorem balance_range i j r b A y : 0 < w i -> 0 < w j -> 0 < m y -> Rabs (r y - b) <= A ->
  Rabs (balanced i j r b y) <= Rmax (/ w i) (/ w j) * A.
Proof.
move=> Hi Hj Hm Ha; rewrite /balanced Rabs_mult.
have bound k : 0 < w k -> 0 <= ratio (mu k) m y <= / w k.
  move=> Hk; have [H0 H1] := balance_ratio k Hm.
  have -> : ratio (mu k) m y = w k * ratio (mu k) m y * / w k by field; lra.
  have I : 0 < / w k by exact: Rinv_0_lt_compat.
  by split; [apply: Rmult_le_pos; lra|rewrite -[X in _ <= X]Rmult_1_l; apply: Rmult_le_compat_r; lra].
have Bi := bound i Hi; have Bj := bound j Hj.
have Mi := Rmax_l (/ w i) (/ w j); have Mj := Rmax_r (/ w i) (/ w j).
by apply: Rmult_le_compat; try exact: Rabs_pos; [apply: Rabs_le; lra|].
Qed.

End Balance.

(** ** Old and new policy in equal shares: the noise is a total variation, never a chi-square *)
Section Halves.
Variable Y : finType.
Variables (pi pik r : Y -> R) (b A : R).
Hypotheses (P : dist pi) (Q : dist pik) (Hr : forall y, Rabs (r y - b) <= A).

Definition half y := (pi y + pik y) / 2.
Definition halved y := (pi y - pik y) / half y * (r y - b).

Lemma half_zero y : half y = 0 -> pi y = 0 /\ pik y = 0.
Proof. by case: P => /(_ y) Hp _; case: Q => /(_ y) Hq _; rewrite /half => H; lra. Qed.

Theorem halves_mean : E half halved = E pi r - E pik r.
Proof.
have -> : E pi r - E pik r = \rsum_y (pi y - pik y) * (r y - b).
  have -> : \rsum_y (pi y - pik y) * (r y - b) = E pi (fun y => r y - b) - E pik (fun y => r y - b).
    by rewrite /E -rsum_sub; apply: rsum_ext => y; ring.
  by rewrite !E_sub !E_const //; ring.
apply: rsum_ext => y; rewrite /halved; case: (Req_dec (half y) 0) => H; last by field.
by have [-> ->] := half_zero H; rewrite H; ring.
Qed.

Lemma halves_abs y : 0 < half y -> Rabs ((pi y - pik y) / half y) <= 2.
Proof.
move=> H; case: P => /(_ y) Hp _; case: Q => /(_ y) Hq _.
have I : 0 < / half y by exact: Rinv_0_lt_compat.
rewrite /Rdiv Rabs_mult (Rabs_pos_eq (/ half y)); last by lra.
apply: (Rmult_le_reg_r (half y)) => //; rewrite Rmult_assoc Rinv_l ?Rmult_1_r; last by lra.
by apply: Rabs_le; rewrite /half; lra.
Qed.

Theorem halves_range y : 0 < half y -> Rabs (halved y) <= 2 * A.
Proof.
move=> H; rewrite /halved Rabs_mult.
by apply: Rmult_le_compat; try exact: Rabs_pos; [exact: halves_abs|exact: Hr].
Qed.

Theorem halves_second_moment : E half (fun y => halved y * halved y) <= 4 * (A * A) * tv pi pik.
Proof.
have -> : 4 * (A * A) * tv pi pik = \rsum_y 2 * (A * A) * Rabs (pi y - pik y).
  by rewrite rsum_scal /tv; field.
apply: rsum_le => y; case: (Req_dec (half y) 0) => H.
  rewrite H Rmult_0_l; apply: Rmult_le_pos; last exact: Rabs_pos.
  by have := sq_ge0 A; lra.
have Hp : 0 < half y by case: P => /(_ y) H1 _; case: Q => /(_ y) H2 _; move: H; rewrite /half; lra.
have R2 : (r y - b) * (r y - b) <= A * A.
  have -> : (r y - b) * (r y - b) = Rabs (r y - b) * Rabs (r y - b).
    by rewrite -Rabs_mult Rabs_pos_eq //; exact: sq_ge0.
  by apply: Rmult_le_compat; try exact: Rabs_pos; exact: Hr.
have -> : half y * (halved y * halved y)
  = (pi y - pik y) * ((pi y - pik y) / half y) * ((r y - b) * (r y - b)) by rewrite /halved; field.
have D2 : 0 <= (pi y - pik y) * ((pi y - pik y) / half y) <= 2 * Rabs (pi y - pik y).
  have -> : (pi y - pik y) * ((pi y - pik y) / half y)
    = Rabs (pi y - pik y) * Rabs ((pi y - pik y) / half y).
    rewrite -Rabs_mult Rabs_pos_eq //.
    have -> : (pi y - pik y) * ((pi y - pik y) / half y)
      = (pi y - pik y) * (pi y - pik y) * / half y by rewrite /Rdiv; ring.
    by apply: Rmult_le_pos; [exact: sq_ge0|left; exact: Rinv_0_lt_compat].
  have Ha := halves_abs Hp; have H0 := Rabs_pos (pi y - pik y).
  by split; [apply: Rmult_le_pos => //; exact: Rabs_pos|nra].
have -> : 2 * (A * A) * Rabs (pi y - pik y) = 2 * Rabs (pi y - pik y) * (A * A) by ring.
by apply: Rmult_le_compat; try lra; exact: sq_ge0.
Qed.

End Halves.

(** Both policies answer the same prompt with the same random numbers: [q] is the law of the pair,
    however the two depend on each other. No ratio enters. *)
Section Paired.
Variable Y : finType.
Variables (q : Y * Y -> R) (pi pik r : Y -> R).
Hypotheses (Hpi : forall y, \rsum_z q (y, z) = pi y) (Hpik : forall z, \rsum_y q (y, z) = pik z).

Theorem paired_mean : E q (fun v => r v.1 - r v.2) = E pi r - E pik r.
Proof.
rewrite E_sub /E; congr (_ - _).
  rewrite (rsum_ext (g := fun v => q (v.1, v.2) * r v.1)); last by case.
  rewrite -(pair_bigA _ (fun y z => q (y, z) * r y)) /=; apply: rsum_ext => y.
  by rewrite -Hpi Rmult_comm -rsum_scal; apply: rsum_ext => z; ring.
rewrite (rsum_ext (g := fun v => q (v.1, v.2) * r v.2)); last by case.
rewrite -(pair_bigA _ (fun y z => q (y, z) * r z)) /= rsum_exchange; apply: rsum_ext => z.
by rewrite -Hpik Rmult_comm -rsum_scal; apply: rsum_ext => y; ring.
Qed.

End Paired.
