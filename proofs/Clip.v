(** The clipped surrogate [f_eps(r, c, a)] with centre [c] (the paper's [r']). *)
Require Import Reals Lra Psatz.
From mathcomp Require Import all_ssreflect.
From OGRPO Require Import Prob Calculus Importance.

Set Implicit Arguments.
Unset Strict Implicit.
Unset Printing Implicit Defensive.

Open Scope R_scope.

Definition feps eps r c a := Rmin (r * a) (clip r (Rmax (c - eps) 0) (c + eps) * a).
Definition feps_case eps r c a :=
  if Rleb 0 a then Rmin r (c + eps) * a else Rmax r (Rmax (c - eps) 0) * a.

Lemma Rmin_mul_ge0 x y a : 0 <= a -> Rmin (x * a) (y * a) = Rmin x y * a.
Proof.
move=> H; rewrite /Rmin; case: (Rle_dec x y) => K; case: Rle_dec => L; nra.
Qed.

Lemma Rmin_mul_le0 x y a : a <= 0 -> Rmin (x * a) (y * a) = Rmax x y * a.
Proof.
move=> H; rewrite /Rmin /Rmax; case: (Rle_dec x y) => K; case: Rle_dec => L; nra.
Qed.

(** Case form = min/clip form; only [eps >= 0] and [c >= 0] are needed. *)
Theorem feps_cases eps r c a : 0 <= eps -> 0 <= c -> feps eps r c a = feps_case eps r c a.
Proof.
move=> He Hc; have Hlo : Rmax (c - eps) 0 <= c + eps by apply: Rmax_lub; lra.
rewrite /feps /feps_case; case: RlebP => Ha.
  rewrite Rmin_mul_ge0 //; congr (_ * _); move: (Rmax (c - eps) 0) Hlo => lo Hlo.
  by rewrite /clip; minmax.
rewrite Rmin_mul_le0; last by lra.
congr (_ * _); move: (Rmax (c - eps) 0) Hlo => lo Hlo.
by rewrite /clip; minmax.
Qed.

(** The inner maximum with zero is redundant for a ratio [r >= 0]. *)
Theorem feps_inner_max eps r c a : 0 <= eps -> 0 <= c -> 0 <= r ->
  feps eps r c a = Rmin (r * a) (clip r (c - eps) (c + eps) * a).
Proof.
move=> He Hc Hr; rewrite /feps; congr (Rmin _ (_ * _)).
by rewrite /clip; minmax.
Qed.

Theorem feps_le eps r c a : feps eps r c a <= r * a.
Proof. exact: Rmin_l. Qed.

Theorem feps_touch eps c a : 0 <= eps -> 0 <= c -> feps eps c c a = c * a.
Proof.
move=> He Hc; rewrite /feps.
have -> : clip c (Rmax (c - eps) 0) (c + eps) = c.
  by rewrite /clip; minmax.
by rewrite Rmin_left //; lra.
Qed.

Theorem feps_mono eps eps' r c a : 0 <= eps <= eps' -> 0 <= c ->
  feps eps r c a <= feps eps' r c a.
Proof.
move=> He Hc; rewrite !feps_cases //; try lra.
rewrite /feps_case; case: RlebP => Ha.
  by apply: Rmult_le_compat_r => //; minmax.
have Ha' : 0 <= - a by lra.
have : Rmax r (Rmax (c - eps') 0) <= Rmax r (Rmax (c - eps) 0) by minmax.
move: (Rmax r _) (Rmax r _) => x z Hxz; nra.
Qed.

(** Concave in the ratio, for either sign of the advantage. *)
Theorem feps_concave eps c a r s t : 0 <= eps -> 0 <= c -> 0 <= t <= 1 ->
  t * feps eps r c a + (1 - t) * feps eps s c a <= feps eps (t * r + (1 - t) * s) c a.
Proof.
move=> He Hc Ht; rewrite !feps_cases // /feps_case; case: RlebP => Ha.
  rewrite -!Rmult_assoc -Rmult_plus_distr_r; apply: Rmult_le_compat_r => //.
  apply: Rmin_glb.
    by apply: Rplus_le_compat; apply: Rmult_le_compat_l; try lra; exact: Rmin_l.
  apply: (Rle_trans _ (t * (c + eps) + (1 - t) * (c + eps))); last by lra.
  by apply: Rplus_le_compat; apply: Rmult_le_compat_l; try lra; exact: Rmin_r.
set lo := Rmax (c - eps) 0.
suff : Rmax (t * r + (1 - t) * s) lo <= t * Rmax r lo + (1 - t) * Rmax s lo by nra.
apply: Rmax_lub.
  by apply: Rplus_le_compat; apply: Rmult_le_compat_l; try lra; exact: Rmax_l.
apply: (Rle_trans _ (t * lo + (1 - t) * lo)); first by lra.
by apply: Rplus_le_compat; apply: Rmult_le_compat_l; try lra; exact: Rmax_r.
Qed.

(** Centre one is the PPO clip. *)
Theorem feps_ppo eps r a : 0 <= eps <= 1 ->
  feps eps r 1 a = Rmin (r * a) (clip r (1 - eps) (1 + eps) * a).
Proof. by move=> He; rewrite /feps (Rmax_left (1 - eps)) //; lra. Qed.

(** For a negative advantage the surrogate is unbounded below: clipping does not bound the ratio. *)
Theorem feps_unbounded eps c a M : 0 <= eps -> 0 <= c -> a < 0 ->
  exists r, 0 <= r /\ feps eps r c a <= M.
Proof.
move=> He Hc Ha; exists (Rmax 0 (M / a)); split; first exact: Rmax_l.
apply: (Rle_trans _ _ _ (feps_le _ _ _ _)).
have := Rmax_r 0 (M / a); have -> : M = M / a * a by field; lra.
have -> : M / a * a / a = M / a by field; lra.
by move=> H; nra.
Qed.

(** The gap above the touch point is at most [eps |a|]. *)
Theorem feps_gap_le eps r c a : 0 <= eps -> 0 <= c -> feps eps r c a - c * a <= eps * Rabs a.
Proof.
move=> He Hc; rewrite feps_cases // /feps_case; case: RlebP => Ha.
  rewrite Rabs_pos_eq //; have := Rmin_r r (c + eps); nra.
rewrite Rabs_left1; last by lra.
have := Rmax_r r (Rmax (c - eps) 0); have := Rmax_l (c - eps) 0; nra.
Qed.

(** The slope at the centre is the advantage, as long as [eps > 0] and [c > 0]. *)
Theorem feps_slope eps c a : 0 < eps -> 0 < c ->
  derivable_pt_lim (fun r => feps eps r c a) c a.
Proof.
move=> He Hc e He'.
have Hd : 0 < Rmin eps c by apply: Rmin_glb_lt.
exists (mkposreal _ Hd) => h h0 /= Hh.
have [H1 H2] : Rabs h < eps /\ Rabs h < c.
  by split; apply: (Rlt_le_trans _ _ _ Hh); [exact: Rmin_l|exact: Rmin_r].
have [H3 H4] := Rabs_def2 _ _ H1; have [H5 H6] := Rabs_def2 _ _ H2.
rewrite feps_touch; try lra.
have -> : feps eps (c + h) c a = (c + h) * a.
  rewrite /feps (_ : clip _ _ _ = c + h); first by rewrite Rmin_left //; lra.
  by rewrite /clip; minmax.
have -> : ((c + h) * a - c * a) / h - a = 0 by field.
by rewrite Rabs_R0.
Qed.

(** The decoupled PPO loss is the same surrogate with a multiplicative band. *)
Theorem decoupled_ppo eps r c a : 0 < c ->
  c * Rmin (r / c * a) (clip (r / c) (1 - eps) (1 + eps) * a)
  = Rmin (r * a) (clip r (c * (1 - eps)) (c * (1 + eps)) * a).
Proof.
move=> Hc; have Hr : r = c * (r / c) by field; lra.
move: (r / c) Hr => x ->.
have Cl : clip (c * x) (c * (1 - eps)) (c * (1 + eps)) = c * clip x (1 - eps) (1 + eps).
  rewrite /clip RmaxRmult; last by lra.
  by rewrite (Rmult_comm c (Rmin _ _)) -Rmin_mul_ge0; [rewrite !(Rmult_comm _ c)|lra].
rewrite Cl; move: (clip x _ _) => y.
have -> : c * x * a = (x * a) * c by ring.
have -> : c * y * a = (y * a) * c by ring.
by rewrite (Rmin_mul_ge0 _ _ (a := c)); [ring|lra].
Qed.
