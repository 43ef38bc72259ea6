(** Derivatives by structure, and the few real inequalities that the chapters need. *)
Require Import Reals Lra Psatz.
From mathcomp Require Import all_ssreflect.

Set Implicit Arguments.
Unset Strict Implicit.
Unset Printing Implicit Defensive.

Open Scope R_scope.

(** Splits every Rmin and Rmax of the goal, innermost first. *)
Ltac plain x :=
  lazymatch x with
  | context [Rmin _ _] => fail
  | context [Rmax _ _] => fail
  | _ => idtac
  end.
Ltac minmax :=
  repeat match goal with
  | |- context [Rmin ?x ?y] => plain x; plain y; destruct (Rle_dec x y);
      [rewrite (Rmin_left x y) | rewrite (Rmin_right x y)]; try lra
  | |- context [Rmax ?x ?y] => plain x; plain y; destruct (Rle_dec x y);
      [rewrite (Rmax_right x y) | rewrite (Rmax_left x y)]; try lra
  end.

Lemma Rabs_le_between x b : Rabs x <= b -> - b <= x <= b.
Proof. by move=> H; have := Rle_abs x; have := Rle_abs (- x); rewrite Rabs_Ropp; lra. Qed.

Notation D := derivable_pt_lim.

Lemma D_eq f x l l' : D f x l -> l = l' -> D f x l'.
Proof. by move=> H <-. Qed.
Lemma D_const c x : D (fun=> c) x 0.
Proof. exact: derivable_pt_lim_const. Qed.
Lemma D_id x : D (fun y => y) x 1.
Proof. exact: derivable_pt_lim_id. Qed.
Lemma D_plus f g x a b : D f x a -> D g x b -> D (fun y => f y + g y) x (a + b).
Proof. exact: derivable_pt_lim_plus. Qed.
Lemma D_minus f g x a b : D f x a -> D g x b -> D (fun y => f y - g y) x (a - b).
Proof. exact: derivable_pt_lim_minus. Qed.
Lemma D_opp f x a : D f x a -> D (fun y => - f y) x (- a).
Proof. exact: derivable_pt_lim_opp. Qed.
Lemma D_mult f g x a b : D f x a -> D g x b ->
  D (fun y => f y * g y) x (a * g x + f x * b).
Proof. exact: derivable_pt_lim_mult. Qed.
Lemma D_inv f x a : D f x a -> f x <> 0 -> D (fun y => / f y) x (- a / (f x * f x)).
Proof.
move=> H H0; apply: (D_eq (l := (0 * f x - a * 1) / Rsqr (f x))); last by rewrite /Rsqr; field.
apply: (derivable_pt_lim_ext (fun y => 1 / f y)) => [y|]; first by rewrite /Rdiv Rmult_1_l.
exact: (derivable_pt_lim_div (fun=> 1) f x 0 a (D_const 1 x) H H0).
Qed.
Lemma D_ln f x a : D f x a -> 0 < f x -> D (fun y => ln (f y)) x (a / f x).
Proof.
move=> H H0; apply: (D_eq (l := / f x * a)); last by rewrite /Rdiv Rmult_comm.
exact: (derivable_pt_lim_comp f ln x a (/ f x) H (derivable_pt_lim_ln _ H0)).
Qed.
Lemma D_exp f x a : D f x a -> D (fun y => exp (f y)) x (exp (f x) * a).
Proof.
by move=> H; exact: (derivable_pt_lim_comp f exp x a (exp (f x)) H (derivable_pt_lim_exp _)).
Qed.

Ltac deriv := eapply D_eq;
  [ repeat first [ apply D_const | apply D_id | eapply D_plus | eapply D_minus
                 | eapply D_opp | eapply D_ln | eapply D_exp | eapply D_inv | eapply D_mult ]
  | ].

(** A function whose derivative has the sign of [x - m] on an interval is least at [m]. *)
Lemma min_at f f' m x : (forall y, Rmin m x <= y <= Rmax m x -> D f y (f' y)) ->
  (forall y, Rmin m x < y < Rmax m x -> 0 <= f' y * (y - m)) -> f m <= f x.
Proof.
move=> HD Hs; case: (Rtotal_order m x) => [H|[<-|H]]; last 1 first.
- rewrite Rmin_right ?Rmax_left in HD Hs; try lra.
  case: (MVT_cor2 f f' x m H HD) => c [Hc Hx]; have := Hs c Hx; nra.
- rewrite Rmin_left ?Rmax_right in HD Hs; try lra.
  case: (MVT_cor2 f f' m x H HD) => c [Hc Hx]; have := Hs c Hx; nra.
- lra.
Qed.

Lemma ln_le x y : 0 < x -> x <= y -> ln x <= ln y.
Proof. by move=> H [/ln_increasing H'|->]; [left; exact: H'|right]. Qed.

Lemma exp_ge x : 1 + x <= exp x.
Proof. exact: exp_ineq1_le. Qed.

Lemma ln_le_sub1 x : 0 < x -> ln x <= x - 1.
Proof. by move=> H; have := exp_ge (ln x); rewrite exp_ln //; lra. Qed.

(** The tangent of ln at [c]. *)
Lemma ln_tangent x c : 0 < x -> 0 < c -> ln x <= ln c + x / c - 1.
Proof.
move=> Hx Hc; have H : 0 < x / c by apply: Rdiv_lt_0_compat.
by have := ln_le_sub1 H; rewrite /Rdiv ln_mult // ?ln_Rinv //; [lra|exact: Rinv_0_lt_compat].
Qed.

Lemma exp_ge_sq x : 0 <= x -> x * x / 4 <= exp x.
Proof.
move=> H; have -> : x = x / 2 + x / 2 by field.
rewrite exp_plus; have := exp_ge (x / 2); have -> : x / 2 + x / 2 = x by field.
by move=> H1; nra.
Qed.

(** [t ln t - t + 1 >= 3 (t-1)^2 / (2t + 4)], the inequality behind Pinsker's constant 1/2. *)
Lemma ln_pade t : 0 < t -> 0 <= ((t + 1) * ln t - 2 * (t - 1)) * (t - 1).
Proof.
move=> Ht; pose k x := ln x - 2 * (x - 1) * / (x + 1).
pose k' x := (x - 1) * (x - 1) / (x * ((x + 1) * (x + 1))).
have Dk x : 0 < x -> D k x (k' x).
  by move=> Hx; rewrite /k; deriv; try lra; rewrite /k'; field; lra.
have k1 : k 1 = 0 by rewrite /k ln_1; field.
have k'0 x : 0 < x -> 0 <= k' x.
  move=> Hx; apply: Rmult_le_pos; first exact: Rle_0_sqr.
  by left; apply: Rinv_0_lt_compat; nra.
have -> : (t + 1) * ln t - 2 * (t - 1) = (t + 1) * k t by rewrite /k; field; lra.
case: (Rtotal_order t 1) => [H|[->|H]]; last 1 first.
- case: (MVT_cor2 k k' 1 t H) => [c Hc|c [E Hc]]; first by apply: Dk; lra.
  have kt : 0 <= k t by rewrite k1 in E; have := k'0 c; nra.
  by apply: Rmult_le_pos; [apply: Rmult_le_pos|]; lra.
- case: (MVT_cor2 k k' t 1 H) => [c Hc|c [E Hc]]; first by apply: Dk; lra.
  have kt : k t <= 0 by rewrite k1 in E; have := k'0 c; nra.
  have -> : (t + 1) * k t * (t - 1) = (t + 1) * (- k t * (1 - t)) by ring.
  by apply: Rmult_le_pos; [|apply: Rmult_le_pos]; lra.
- by rewrite Rminus_diag_eq // Rmult_0_r; lra.
Qed.

Lemma pinsker_pointwise t : 0 <= t ->
  3 * ((t - 1) * (t - 1)) <= (2 * t + 4) * (t * ln t - t + 1).
Proof.
case=> [Ht|<-]; last by rewrite !Rmult_0_l; lra.
pose h x := (2 * x + 4) * (x * ln x - x + 1) - 3 * ((x - 1) * (x - 1)).
pose h' x := 4 * ((x + 1) * ln x - 2 * (x - 1)).
suff : h 1 <= h t by rewrite /h ln_1; lra.
have Hpos y : Rmin 1 t <= y -> 0 < y by have := Rmin_glb_lt 1 t 0; lra.
apply: (min_at (f' := h')) => y Hy.
  have Hy0 := Hpos y (proj1 Hy).
  by rewrite /h; deriv; try lra; rewrite /h'; field; lra.
have Hy0 : 0 < y by apply: Hpos; lra.
by rewrite /h'; have := ln_pade Hy0; lra.
Qed.

(** Fan, Grama and Liu's inequality: one-sided, [x] may be arbitrarily large. *)
Lemma ln_1m_le l : 0 <= l < 1 -> ln (1 - l) + l <= - (l * l) / 2.
Proof.
move=> [[H|<-] H1]; last by rewrite Rminus_0_r ln_1; lra.
pose f x := ln (1 - x) + x + x * x / 2; pose f' x := - (x * x) / (1 - x).
suff : f l <= f 0 by rewrite /f Rminus_0_r ln_1; lra.
case: (MVT_cor2 f f' 0 l H) => [c Hc|c [E Hc]].
  by rewrite /f; deriv; try lra; rewrite /f'; field; lra.
suff : f' c <= 0 by nra.
rewrite /f'; have : 0 < / (1 - c) by apply: Rinv_0_lt_compat; lra.
by rewrite /Rdiv; nra.
Qed.

Definition psi l := - ln (1 - l) - l.

Lemma psi_ge0 l : 0 <= l < 1 -> 0 <= psi l.
Proof. by move=> Hl; have := ln_1m_le Hl; rewrite /psi; nra. Qed.

(** [psi] is sub-gamma. *)
Lemma psi_le l : 0 <= l < 1 -> psi l <= l * l / (2 * (1 - l)).
Proof.
move=> [[H|<-] H1]; last by rewrite /psi !Rminus_0_r ln_1 /Rdiv !Rmult_0_l; lra.
pose f x := x * x * / (2 * (1 - x)) + ln (1 - x) + x.
pose f' x := x * x / (2 * ((1 - x) * (1 - x))).
suff : f 0 <= f l by rewrite /f /psi Rminus_0_r ln_1 /Rdiv; lra.
case: (MVT_cor2 f f' 0 l H) => [c Hc|c [E Hc]].
  by rewrite /f; deriv; try lra; rewrite /f'; field; lra.
suff : 0 <= f' c by nra.
apply: Rmult_le_pos; first exact: Rle_0_sqr.
by left; apply: Rinv_0_lt_compat; nra.
Qed.

Lemma fan_ln l x : 0 <= l < 1 -> -1 <= x -> l * x - psi l * (x * x) <= ln (1 + l * x).
Proof.
move=> Hl Hx.
case: (Req_dec l 0) => [->|l0].
  by rewrite /psi !Rminus_0_r !Rmult_0_l Rplus_0_r ln_1; lra.
have lp : 0 < l < 1 by lra.
pose g y := ln (1 + l * y) - l * y + psi l * (y * y).
pose s y := 2 * psi l - l * l / (1 + l * y).
pose g' y := y * s y.
have pos y : -1 <= y -> 0 < 1 + l * y by move=> Hy; nra.
have Dg y : -1 <= y -> D g y (g' y).
  move=> /pos Hy; rewrite /g; deriv; first exact: Hy.
  by rewrite /g' /s; field; lra.
have psi_ge : l * l <= 2 * psi l by rewrite /psi; have := ln_1m_le Hl; lra.
have g0 : g 0 = 0 by rewrite /g Rmult_0_r Rplus_0_r ln_1; ring.
have gm1 : g (-1) = 0 by rewrite /g /psi (_ : 1 + l * -1 = 1 - l); ring.
suff : 0 <= g x by rewrite /g; lra.
case: (Rle_lt_dec 0 x) => H0.
  rewrite -g0; apply: (min_at (f' := g')) => y; rewrite Rmin_left // Rmax_right // => Hy.
    by apply: Dg; lra.
  rewrite /g'; have : l * l / (1 + l * y) <= l * l.
    have Hi : 0 < / (1 + l * y) by apply: Rinv_0_lt_compat; apply: pos; lra.
    have : / (1 + l * y) <= 1.
      by rewrite -[X in _ <= X]Rinv_1; apply: Rinv_le_contravar; nra.
    by rewrite /Rdiv; nra.
  move=> H; have -> : y * s y * (y - 0) = s y * (y * y) by ring.
  by apply: Rmult_le_pos; [rewrite /s; lra|exact: Rle_0_sqr].
case: (Req_dec x (-1)) => [->|xm]; first by lra.
case: (Rle_lt_dec 0 (g x)) => // Hg.
case: (MVT_cor2 g g' (-1) x); [lra|by move=> c Hc; apply: Dg; lra|] => c1 [E1 Hc1].
case: (MVT_cor2 g g' x 0); [lra|by move=> c Hc; apply: Dg; lra|] => c2 [E2 Hc2].
have S1 : 0 < s c1.
  case: (Rlt_le_dec 0 (s c1)) => // Hs; rewrite gm1 /g' in E1.
  have : 0 <= c1 * s c1 * (x - -1) by apply: Rmult_le_pos; [nra|lra].
  lra.
have S2 : s c2 < 0.
  case: (Rlt_le_dec (s c2) 0) => // Hs; rewrite g0 /g' in E2.
  have : 0 <= - c2 * s c2 * (0 - x) by apply: Rmult_le_pos; [nra|lra].
  lra.
suff : s c1 <= s c2 by lra.
rewrite /s; suff : / (1 + l * c2) <= / (1 + l * c1) by rewrite /Rdiv; nra.
by apply: Rinv_le_contravar; [apply: pos; lra|nra].
Qed.

Theorem fan_exp l x : 0 <= l < 1 -> -1 <= x -> exp (l * x - psi l * (x * x)) <= 1 + l * x.
Proof.
move=> Hl Hx; have Hp : 0 < 1 + l * x by nra.
rewrite -(exp_ln _ Hp); case: (fan_ln Hl Hx) => [H|->]; last by right.
by left; exact: exp_increasing.
Qed.

(** Weighted arithmetic and geometric means: [x^l <= 1 + l (x - 1)]. *)
Lemma power_le l x : 0 <= l <= 1 -> 0 < x -> exp (l * ln x) <= 1 + l * (x - 1).
Proof.
move=> Hl Hx; set m := l * ln x.
have H1 := exp_ge (ln x - m); have H2 := exp_ge (- m); have H0 := exp_pos m.
have E1 : exp m * exp (ln x - m) = x.
  by rewrite -exp_plus (_ : m + (ln x - m) = ln x) ?exp_ln //; ring.
have E2 : exp m * exp (- m) = 1 by rewrite -exp_plus Rplus_opp_r exp_0.
have G1 : exp m * (1 + (ln x - m)) <= x.
  by rewrite -[X in _ <= X]E1; apply: Rmult_le_compat_l; lra.
have G2 : exp m * (1 + - m) <= 1.
  by rewrite -[X in _ <= X]E2; apply: Rmult_le_compat_l; lra.
have -> : exp m = l * (exp m * (1 + (ln x - m))) + (1 - l) * (exp m * (1 + - m)).
  have -> : l * (exp m * (1 + (ln x - m))) + (1 - l) * (exp m * (1 + - m))
    = exp m * (1 + (l * ln x - m)) by ring.
  by rewrite /m; ring.
have := Rmult_le_compat_l l _ _ (proj1 Hl) G1.
have Hl' : 0 <= 1 - l by lra.
have := Rmult_le_compat_l (1 - l) _ _ Hl' G2; lra.
Qed.

(** The chord slope of ln from 1 decreases. *)
Lemma ln_chord s t : 1 < s -> s <= t -> (s - 1) * ln t <= (t - 1) * ln s.
Proof.
move=> Hs Hst; have H0 : 0 < s by lra.
have Ht : 0 < t by lra.
have T1 := ln_tangent Ht H0; have T2 := ln_tangent Rlt_0_1 H0; rewrite ln_1 in T2.
have G1 : (s - 1) * ln t <= (s - 1) * (ln s + t / s - 1) by apply: Rmult_le_compat_l; lra.
have G2 : 0 <= (t - s) * (ln s + 1 / s - 1) by apply: Rmult_le_pos; lra.
have -> : (t - 1) * ln s = (s - 1) * (ln s + t / s - 1) + (t - s) * (ln s + 1 / s - 1).
  by field; lra.
lra.
Qed.

Lemma phi_le_sq t : 1 <= t -> t * ln t - t + 1 <= (t - 1) * (t - 1) / 2.
Proof.
case=> [Ht|<-]; last by rewrite ln_1; lra.
pose g x := (x - 1) * (x - 1) / 2 - (x * ln x - x + 1); pose g' x := x - 1 - ln x.
suff : g 1 <= g t by rewrite /g ln_1; lra.
apply: (min_at (f' := g')) => y; rewrite Rmin_left ?Rmax_right; try lra; move=> Hy.
  by rewrite /g /Rdiv; deriv; try lra; rewrite /g'; field; lra.
have y0 : 0 < y by lra.
by apply: Rmult_le_pos; [have := ln_le_sub1 y0; rewrite /g'; lra|lra].
Qed.

(** [(t-1)^2 <= kappa phi(t)] up to the point [r] where it is an equality. *)
Lemma kappa_pointwise r t : 1 < r -> 0 < t <= r ->
  (t - 1) * (t - 1) * (r * ln r - r + 1) <= (r - 1) * (r - 1) * (t * ln t - t + 1).
Proof.
move=> Hr [Ht Htr]; set p := r * ln r - r + 1; set q := (r - 1) * (r - 1).
have q0 : 0 < q by apply: Rmult_lt_0_compat; lra.
have pq : 2 * p <= q by have := phi_le_sq (Rlt_le _ _ Hr); rewrite -/p -/q; lra.
have p0 : 0 <= p.
  have Hr0 : 0 <= r by lra.
  have := pinsker_pointwise Hr0; rewrite -/p => H.
  have := Rle_0_sqr (r - 1); rewrite /Rsqr => H'; nra.
pose h x := q * (x * ln x - x + 1) - (x - 1) * (x - 1) * p.
pose h' x := q * ln x - 2 * (x - 1) * p.
suff : 0 <= h t by rewrite /h; lra.
have Dh x : 0 < x -> D h x (h' x).
  by move=> Hx; rewrite /h; deriv; try lra; rewrite /h'; field; lra.
have h1 : h 1 = 0 by rewrite /h ln_1; ring.
have hr : h r = 0 by rewrite /h -/p -/q; ring.
case: (Rle_lt_dec t 1) => H1.
  rewrite -h1; apply: (min_at (f' := h')) => y; rewrite Rmin_right ?Rmax_left; try lra;
    move=> Hy; first by apply: Dh; lra.
  have y0 : 0 < y by lra.
  have L := ln_le_sub1 y0.
  have : 0 <= (1 - y) * (- h' y) by apply: Rmult_le_pos; rewrite /h'; nra.
  by lra.
case: (Rle_lt_dec 0 (h t)) => // Hn.
case: (Req_dec t r) => [E|Ntr]; first by move: Hn; rewrite E hr; lra.
case: (MVT_cor2 h h' 1 t H1) => [c Hc|c1 [E1 Hc1]]; first by apply: Dh; lra.
have Htr' : t < r by lra.
case: (MVT_cor2 h h' t r Htr') => [c Hc|c2 [E2 Hc2]]; first by apply: Dh; lra.
have S1 : h' c1 < 0.
  case: (Rlt_le_dec (h' c1) 0) => // Hs.
  have : 0 <= h' c1 * (t - 1) by apply: Rmult_le_pos; lra.
  lra.
have S2 : 0 < h' c2.
  case: (Rlt_le_dec 0 (h' c2)) => // Hs.
  have : 0 <= - h' c2 * (r - t) by apply: Rmult_le_pos; lra.
  lra.
have C : 1 < c1 by lra.
have C' : c1 <= c2 by lra.
have L := Rmult_le_compat_l q _ _ (Rlt_le _ _ q0) (ln_chord C C').
have G1 : (c2 - 1) * h' c1 < 0.
  have : 0 < (c2 - 1) * (- h' c1) by apply: Rmult_lt_0_compat; lra.
  lra.
have G2 : 0 < (c1 - 1) * h' c2 by apply: Rmult_lt_0_compat; lra.
move: G1 G2; rewrite /h'; lra.
Qed.
