(** The token-sum surrogate misses the sequence objective by at most [T (T-1) zeta^2]. *)
Require Import Reals Lra Psatz.
From mathcomp Require Import all_ssreflect.
From OGRPO Require Import Prob Calculus Divergence.

Set Implicit Arguments.
Unset Strict Implicit.
Unset Printing Implicit Defensive.

Open Scope R_scope.

Section Token.
Variable V : finType.
(** A policy: the distribution of the next token after a prefix. *)
Implicit Types (pi mu : seq V -> V -> R) (h : seq V).

(** The expectation of [F] over [k] more tokens after the prefix [h]. *)
Fixpoint rollout (k : nat) pi (F : seq V -> R) h : R :=
  match k with
  | O => F h
  | S k => E (pi h) (fun v => rollout k pi F (rcons h v))
  end.

(** [E_mu[(s + sum of (rho_t - 1) over the remaining k tokens) F]]. *)
Fixpoint token_sum (k : nat) pi mu (F : seq V -> R) (s : R) h : R :=
  match k with
  | O => s * F h
  | S k => E (mu h) (fun v => token_sum k pi mu F (s + (ratio (pi h) (mu h) v - 1)) (rcons h v))
  end.

Definition token_surrogate k pi mu F := token_sum k pi mu F 0 [::].

Variables (pi mu : seq V -> V -> R) (F : seq V -> R) (zeta : R).
Hypotheses (Pi : forall h, dist (pi h)) (Mu : forall h, dist (mu h)).
Hypothesis Ac : forall h, abscont (pi h) (mu h).
Hypothesis F01 : forall h, 0 <= F h <= 1.
Hypothesis Zeta : forall h, tv (pi h) (mu h) <= zeta.

Notation Jp k := (rollout k pi F).
Notation Q k := (rollout k mu F).
Notation L k := (token_sum k pi mu F).

Lemma rollout_between k q h : (forall h, dist (q h)) -> 0 <= rollout k q F h <= 1.
Proof.
move=> Dq; elim: k h => [|k IH] h /=; first exact: F01.
by apply: E_between => // v; exact: IH.
Qed.

Lemma zeta_ge0 : 0 <= zeta.
Proof. by have := Zeta [::]; have := tv_ge0 (pi [::]) (mu [::]); lra. Qed.

Lemma token_sum_shift k s h : L k s h = s * Q k h + L k 0 h.
Proof.
elim: k s h => [|k IH] s h /=; first by ring.
rewrite -E_scal -E_add; apply: E_eq => v.
by rewrite IH [in RHS]IH; ring.
Qed.

Lemma token_sum_step k h : L (S k) 0 h
  = E (pi h) (fun v => Q k (rcons h v)) - E (mu h) (fun v => Q k (rcons h v))
    + E (mu h) (fun v => L k 0 (rcons h v)).
Proof.
rewrite /= -(change_measure _ (Ac (h := h))) -E_sub -E_add; apply: E_eq => v.
by rewrite token_sum_shift; ring.
Qed.

Lemma value_gap k h : Rabs (Jp k h - Q k h) <= INR k * zeta.
Proof.
elim: k h => [|k IH] h; first by rewrite /= Rminus_diag_eq // Rabs_R0; lra.
rewrite S_INR /=.
have -> : E (pi h) (fun v => Jp k (rcons h v)) - E (mu h) (fun v => Q k (rcons h v))
  = E (pi h) (fun v => Jp k (rcons h v) - Q k (rcons h v))
    + (E (pi h) (fun v => Q k (rcons h v)) - E (mu h) (fun v => Q k (rcons h v))).
  by rewrite E_sub; ring.
apply: Rle_trans; first exact: Rabs_triang.
rewrite Rmult_plus_distr_r; apply: Rplus_le_compat.
  apply: Rle_trans; first by apply: E_abs.
  by rewrite -[X in _ <= X](E_const _ (Pi h)); apply: E_le => // v _; exact: IH.
have H := @tv_dual _ (pi h) (mu h) (fun v => Q k (rcons h v)) 0 1 (Pi h) (Mu h)
  (fun v => rollout_between k (rcons h v) Mu).
by have := Zeta h; lra.
Qed.

(** The bound, by induction on the number of tokens. *)
Theorem token_surrogate_gap k h :
  Rabs (Jp k h - Q k h - L k 0 h) <= INR k * (INR k - 1) * (zeta * zeta).
Proof.
elim: k h => [|k IH] h.
  by rewrite /= (_ : F h - F h - 0 * F h = 0) ?Rabs_R0; [lra|ring].
rewrite token_sum_step.
have -> : Jp k.+1 h - Q k.+1 h
   - (E (pi h) (fun v => Q k (rcons h v)) - E (mu h) (fun v => Q k (rcons h v))
      + E (mu h) (fun v => L k 0 (rcons h v)))
  = E (mu h) (fun v => Jp k (rcons h v) - Q k (rcons h v) - L k 0 (rcons h v))
    + (E (pi h) (fun v => Jp k (rcons h v) - Q k (rcons h v))
       - E (mu h) (fun v => Jp k (rcons h v) - Q k (rcons h v))).
  rewrite (E_sub _ (fun v => Jp k (rcons h v) - Q k (rcons h v))) !E_sub /=; ring.
apply: Rle_trans; first exact: Rabs_triang.
have -> : INR k.+1 * (INR k.+1 - 1) * (zeta * zeta)
  = INR k * (INR k - 1) * (zeta * zeta) + 2 * (INR k * zeta) * zeta by rewrite S_INR; ring.
apply: Rplus_le_compat.
  apply: Rle_trans; first by apply: E_abs.
  by rewrite -[X in _ <= X](E_const _ (Mu h)); apply: E_le => // v _; exact: IH.
have H := @tv_dual _ (pi h) (mu h) (fun v => Jp k (rcons h v) - Q k (rcons h v))
  (- (INR k * zeta)) (INR k * zeta) (Pi h) (Mu h)
  (fun v => Rabs_le_between (value_gap k (rcons h v))).
apply: Rle_trans; first exact: H.
have -> : INR k * zeta - - (INR k * zeta) = 2 * (INR k * zeta) by ring.
apply: Rmult_le_compat_l; last exact: Zeta.
by have := zeta_ge0; have := pos_INR k; nra.
Qed.

Theorem token_surrogate_bound T :
  Rabs (Jp T [::] - Q T [::] - token_surrogate T pi mu F) <= INR T * (INR T - 1) * (zeta * zeta).
Proof. exact: token_surrogate_gap. Qed.

(** ** Token ratios truncated at [c]: the weight is the product of [min(rho_t, c)] *)
Fixpoint truncated (c : R) (k : nat) h : R :=
  match k with
  | O => F h
  | S k => E (mu h) (fun v => Rmin (ratio (pi h) (mu h) v) c * truncated c k (rcons h v))
  end.

(** The mass that one token loses at most, [zeta_c]; at [c = 1] the largest total variation. *)
Theorem token_truncation_bias c z T : 0 < c -> z <= 1 ->
  (forall h, E (mu h) (fun v => Rmax (ratio (pi h) (mu h) v - c) 0) <= z) ->
  0 <= Jp T [::] - truncated c T [::] <= 1 - (1 - z) ^ T.
Proof.
move=> Hc Hz1 Hz.
suff K k h : 0 <= truncated c k h <= Jp k h /\ Jp k h - truncated c k h <= 1 - (1 - z) ^ k.
  by have [H1 H2] := K T [::]; lra.
elim: k h => [|k IH] h; first by rewrite /=; have := F01 h; lra.
have pow0 : 0 <= (1 - z) ^ k by apply: pow_le; lra.
pose kept v := Rmin (ratio (pi h) (mu h) v) c; pose lost v := Rmax (ratio (pi h) (mu h) v - c) 0.
have split v : ratio (pi h) (mu h) v = kept v + lost v.
  by rewrite /kept /lost /Rmin /Rmax; case: Rle_dec; case: Rle_dec; lra.
have kept0 v : 0 < mu h v -> 0 <= kept v.
  by move=> Hv; apply: Rmin_glb; [exact: ratio_ge0|lra].
have lost0 v : 0 <= lost v by exact: Rmax_r.
have Jk : Jp k.+1 h = E (mu h) (fun v => (kept v + lost v) * Jp k (rcons h v)).
  rewrite /= -(change_measure _ (Ac (h := h))); apply: E_eq => v; by rewrite split.
have mass : E (mu h) (fun v => kept v + lost v) = 1.
  by rewrite -[RHS](E_ratio (Pi h) (Ac (h := h))); apply: E_eq => v; rewrite -split.
have J01 v : 0 <= Jp k (rcons h v) <= 1 by apply: rollout_between.
split; [split|].
- rewrite /=; apply: E_ge0 => // v Hv; apply: Rmult_le_pos; first exact: kept0.
  by have [[]] := IH (rcons h v).
- rewrite Jk /=; apply: E_le => // v Hv; have [H1 _] := IH (rcons h v).
  have := kept0 v Hv; have := lost0 v; have := J01 v; move=> H2 H3 H4.
  have : 0 <= lost v * Jp k (rcons h v) by apply: Rmult_le_pos; lra.
  have : kept v * truncated c k (rcons h v) <= kept v * Jp k (rcons h v) by apply: Rmult_le_compat_l; lra.
  by rewrite -/(kept v); lra.
- rewrite Jk /= -E_sub.
  apply: (Rle_trans _ (E (mu h) (fun v => kept v + lost v - (1 - z) ^ k * (kept v + lost v)
     + (1 - z) ^ k * lost v))).
    apply: E_le => // v Hv; have [H1 H2] := IH (rcons h v); have Hk := kept0 v Hv.
    rewrite -/(kept v); have := J01 v; have := lost0 v.
    move: (Jp k _) (truncated c k _) (kept v) (lost v) ((1 - z) ^ k) H1 H2 Hk => j t x y e *.
    have : x * (j - t) <= x * (1 - e) by apply: Rmult_le_compat_l; lra.
    have : y * j <= y * 1 by apply: Rmult_le_compat_l; lra.
    lra.
  rewrite E_add E_sub !E_scal mass.
  have := Rmult_le_compat_l _ _ _ pow0 (Hz h); rewrite -/lost; lra.
Qed.

End Token.

(** Equality is reached with two binary tokens, for every [zeta <= 1/2]. *)
Theorem token_surrogate_attained z : 0 <= z <= / 2 ->
  let mu := fun _ : seq bool => bern (/ 2) in
  let pi := fun h : seq bool => match h with
    | [::] => bern (/ 2 + z) | true :: _ => bern (/ 2 + z) | false :: _ => bern (/ 2 - z) end in
  let F := fun h : seq bool => match h with [:: _; b] => if b then 1 else 0 | _ => 0 end in
  [/\ forall h, tv (pi h) (mu h) = z
    & rollout 2 pi F [::] - rollout 2 mu F [::] - token_surrogate 2 pi mu F
      = INR 2 * (INR 2 - 1) * (z * z)].
Proof.
move=> Hz mu pi F; have T x : tv (bern (/ 2 + x)) (bern (/ 2)) = Rabs x.
  rewrite /tv rsum_bool /bern (_ : / 2 + x - / 2 = x); last by ring.
  by rewrite (_ : 1 - (/ 2 + x) - (1 - / 2) = - x); [rewrite Rabs_Ropp; field|ring].
split=> [h|].
  rewrite /pi /mu; case: h => [|[] h]; rewrite ?/Rminus T ?Rabs_Ropp Rabs_pos_eq //; lra.
by rewrite /token_surrogate /= /mu /pi /E !rsum_bool /ratio /bern /=; field.
Qed.
