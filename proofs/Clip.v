(** The clipped surrogate [f_eps(r, c, a)] with centre [c] (the paper's [r']) and band [[c - el, c + eh]]. *)
Require Import Reals Lra Psatz.
From mathcomp Require Import all_ssreflect.
From OGRPO Require Import Prob Calculus Importance.

Set Implicit Arguments.
Unset Strict Implicit.
Unset Printing Implicit Defensive.

Open Scope R_scope.

Definition feps el eh r c a := Rmin (r * a) (clip r (Rmax (c - el) 0) (c + eh) * a).
Definition feps_case el eh r c a :=
  if Rleb 0 a then Rmin r (c + eh) * a else Rmax r (Rmax (c - el) 0) * a.

Lemma Rmin_mul_ge0 x y a : 0 <= a -> Rmin (x * a) (y * a) = Rmin x y * a.
Proof.
move=> H; rewrite /Rmin; case: (Rle_dec x y) => K; case: Rle_dec => L; nra.
Qed.

Lemma Rmin_mul_le0 x y a : a <= 0 -> Rmin (x * a) (y * a) = Rmax x y * a.
Proof.
move=> H; rewrite /Rmin /Rmax; case: (Rle_dec x y) => K; case: Rle_dec => L; nra.
Qed.

(** Case form = min/clip form; only [el, eh >= 0] and [c >= 0] are needed. *)
Theorem feps_cases el eh r c a : 0 <= el -> 0 <= eh -> 0 <= c ->
  feps el eh r c a = feps_case el eh r c a.
Proof.
move=> He Hf Hc; have Hlo : Rmax (c - el) 0 <= c + eh by apply: Rmax_lub; lra.
rewrite /feps /feps_case; case: RlebP => Ha.
  rewrite Rmin_mul_ge0 //; congr (_ * _); move: (Rmax (c - el) 0) Hlo => lo Hlo.
  by rewrite /clip; minmax.
rewrite Rmin_mul_le0; last by lra.
congr (_ * _); move: (Rmax (c - el) 0) Hlo => lo Hlo.
by rewrite /clip; minmax.
Qed.

(** The inner maximum with zero is redundant for a ratio [r >= 0]. *)
Theorem feps_inner_max el eh r c a : 0 <= el -> 0 <= eh -> 0 <= c -> 0 <= r ->
  feps el eh r c a = Rmin (r * a) (clip r (c - el) (c + eh) * a).
Proof.
move=> He Hf Hc Hr; rewrite /feps; congr (Rmin _ (_ * _)).
by rewrite /clip; minmax.
Qed.

Theorem feps_le el eh r c a : feps el eh r c a <= r * a.
Proof. exact: Rmin_l. Qed.

Theorem feps_touch el eh c a : 0 <= el -> 0 <= eh -> 0 <= c -> feps el eh c c a = c * a.
Proof.
move=> He Hf Hc; rewrite /feps.
have -> : clip c (Rmax (c - el) 0) (c + eh) = c.
  by rewrite /clip; minmax.
by rewrite Rmin_left //; lra.
Qed.

Theorem feps_mono el eh el' eh' r c a : 0 <= el <= el' -> 0 <= eh <= eh' -> 0 <= c ->
  feps el eh r c a <= feps el' eh' r c a.
Proof.
move=> He Hf Hc; rewrite !feps_cases //; try lra.
rewrite /feps_case; case: RlebP => Ha.
  by apply: Rmult_le_compat_r => //; minmax.
have Ha' : 0 <= - a by lra.
have : Rmax r (Rmax (c - el') 0) <= Rmax r (Rmax (c - el) 0) by minmax.
move: (Rmax r _) (Rmax r _) => x z Hxz; nra.
Qed.

(** Concave in the ratio, for either sign of the advantage. *)
Theorem feps_concave el eh c a r s t : 0 <= el -> 0 <= eh -> 0 <= c -> 0 <= t <= 1 ->
  t * feps el eh r c a + (1 - t) * feps el eh s c a <= feps el eh (t * r + (1 - t) * s) c a.
Proof.
move=> He Hf Hc Ht; rewrite !feps_cases // /feps_case; case: RlebP => Ha.
  rewrite -!Rmult_assoc -Rmult_plus_distr_r; apply: Rmult_le_compat_r => //.
  apply: Rmin_glb.
    by apply: Rplus_le_compat; apply: Rmult_le_compat_l; try lra; exact: Rmin_l.
  apply: (Rle_trans _ (t * (c + eh) + (1 - t) * (c + eh))); last by lra.
  by apply: Rplus_le_compat; apply: Rmult_le_compat_l; try lra; exact: Rmin_r.
set lo := Rmax (c - el) 0.
suff : Rmax (t * r + (1 - t) * s) lo <= t * Rmax r lo + (1 - t) * Rmax s lo by nra.
apply: Rmax_lub.
  by apply: Rplus_le_compat; apply: Rmult_le_compat_l; try lra; exact: Rmax_l.
apply: (Rle_trans _ (t * lo + (1 - t) * lo)); first by lra.
by apply: Rplus_le_compat; apply: Rmult_le_compat_l; try lra; exact: Rmax_r.
Qed.

(** Centre one is the PPO clip. *)
Theorem feps_ppo el eh r a : 0 <= el <= 1 ->
  feps el eh r 1 a = Rmin (r * a) (clip r (1 - el) (1 + eh) * a).
Proof. by move=> He; rewrite /feps (Rmax_left (1 - el)) //; lra. Qed.

(** For a negative advantage the surrogate is unbounded below: clipping does not bound the ratio. *)
Theorem feps_unbounded el eh c a M : 0 <= el -> 0 <= eh -> 0 <= c -> a < 0 ->
  exists r, 0 <= r /\ feps el eh r c a <= M.
Proof.
move=> He Hf Hc Ha; exists (Rmax 0 (M / a)); split; first exact: Rmax_l.
apply: (Rle_trans _ _ _ (feps_le _ _ _ _ _)).
have := Rmax_r 0 (M / a); have -> : M = M / a * a by field; lra.
have -> : M / a * a / a = M / a by field; lra.
by move=> H; nra.
Qed.

(** The gap above the touch point is at most [max(el, eh) |a|]. *)
Theorem feps_gap_le el eh r c a : 0 <= el -> 0 <= eh -> 0 <= c ->
  feps el eh r c a - c * a <= Rmax el eh * Rabs a.
Proof.
move=> He Hf Hc; rewrite feps_cases // /feps_case; case: RlebP => Ha.
  rewrite Rabs_pos_eq //; have := Rmin_r r (c + eh); have := Rmax_r el eh; nra.
rewrite Rabs_left1; last by lra.
have := Rmax_r r (Rmax (c - el) 0); have := Rmax_l (c - el) 0; have := Rmax_l el eh; nra.
Qed.

(** The slope at the centre is the advantage, as long as [el > 0], [eh > 0] and [c > 0]. *)
Theorem feps_slope el eh c a : 0 < el -> 0 < eh -> 0 < c ->
  derivable_pt_lim (fun r => feps el eh r c a) c a.
Proof.
move=> He Hf Hc e He'.
have Hd : 0 < Rmin (Rmin el eh) c by apply: Rmin_glb_lt => //; exact: Rmin_glb_lt.
exists (mkposreal _ Hd) => h h0 /= Hh.
have M1 := Rmin_l (Rmin el eh) c; have M2 := Rmin_r (Rmin el eh) c.
have M3 := Rmin_l el eh; have M4 := Rmin_r el eh.
have [H1 H2] := Rabs_def2 _ _ Hh.
rewrite feps_touch; try lra.
have -> : feps el eh (c + h) c a = (c + h) * a.
  rewrite /feps (_ : clip _ _ _ = c + h); first by rewrite Rmin_left //; lra.
  by rewrite /clip; minmax.
have -> : ((c + h) * a - c * a) / h - a = 0 by field.
by rewrite Rabs_R0.
Qed.

(** The decoupled PPO loss is the same surrogate with a multiplicative band. *)
Theorem decoupled_ppo el eh r c a : 0 < c ->
  c * Rmin (r / c * a) (clip (r / c) (1 - el) (1 + eh) * a)
  = Rmin (r * a) (clip r (c * (1 - el)) (c * (1 + eh)) * a).
Proof.
move=> Hc; have Hr : r = c * (r / c) by field; lra.
move: (r / c) Hr => x ->.
have Cl : clip (c * x) (c * (1 - el)) (c * (1 + eh)) = c * clip x (1 - el) (1 + eh).
  rewrite /clip RmaxRmult; last by lra.
  by rewrite (Rmult_comm c (Rmin _ _)) -Rmin_mul_ge0; [rewrite !(Rmult_comm _ c)|lra].
rewrite Cl; move: (clip x _ _) => y.
have -> : c * x * a = (x * a) * c by ring.
have -> : c * y * a = (y * a) * c by ring.
by rewrite (Rmin_mul_ge0 _ _ (a := c)); [ring|lra].
Qed.
