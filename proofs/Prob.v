(** Finite probability: sums over a finite type, expectations, and products of
    independent coordinates. Every later chapter rests on this one. *)
Require Import Reals Lra Psatz.
From mathcomp Require Import all_ssreflect.

Set Implicit Arguments.
Unset Strict Implicit.
Unset Printing Implicit Defensive.

Open Scope R_scope.

Lemma RplusA : associative Rplus.
Proof. by move=> x y z; rewrite Rplus_assoc. Qed.
Lemma RmultA : associative Rmult.
Proof. by move=> x y z; rewrite Rmult_assoc. Qed.
Lemma Rmult_plus_dl : left_distributive Rmult Rplus.
Proof. by move=> x y z; rewrite Rmult_plus_distr_r. Qed.
Lemma Rmult_plus_dr : right_distributive Rmult Rplus.
Proof. by move=> x y z; rewrite Rmult_plus_distr_l. Qed.

Lemma sq_ge0 x : 0 <= x * x.
Proof. exact: Rle_0_sqr. Qed.

(** Boolean comparison of reals. *)
Definition Rltb x y : bool := if Rlt_dec x y then true else false.
Definition Rleb x y : bool := if Rle_dec x y then true else false.
Lemma RltbP x y : reflect (x < y) (Rltb x y).
Proof. by rewrite /Rltb; case: Rlt_dec => H; constructor. Qed.
Lemma RlebP x y : reflect (x <= y) (Rleb x y).
Proof. by rewrite /Rleb; case: Rle_dec => H; constructor. Qed.

Canonical Rplus_law := Monoid.Law RplusA Rplus_0_l Rplus_0_r.
Canonical Rplus_comlaw := Monoid.ComLaw Rplus_comm.
Canonical Rmult_law := Monoid.Law RmultA Rmult_1_l Rmult_1_r.
Canonical Rmult_comlaw := Monoid.ComLaw Rmult_comm.
Canonical Rmult_mullaw := Monoid.MulLaw Rmult_0_l Rmult_0_r.
Canonical Rplus_addlaw := Monoid.AddLaw Rmult_plus_dl Rmult_plus_dr.

Notation "\rsum_ i F" := (\big[Rplus/0]_i F%R)
  (at level 41, F at level 41, i at level 0).
Notation "\rsum_ ( i | P ) F" := (\big[Rplus/0]_(i | P%B) F%R)
  (at level 41, F at level 41, i at level 50).
Notation "\rprod_ i F" := (\big[Rmult/1]_i F%R)
  (at level 36, F at level 36, i at level 0).

(** ** Sums *)
Section Sums.
Variable I : finType.
Implicit Types f g : I -> R.

Lemma rsum_ext f g : (forall i, f i = g i) -> \rsum_i f i = \rsum_i g i.
Proof. by move=> H; apply: eq_bigr. Qed.

Lemma rsum_add f g : \rsum_i (f i + g i) = \rsum_i f i + \rsum_i g i.
Proof. exact: big_split. Qed.

Lemma rsum_scal c f : \rsum_i (c * f i) = c * \rsum_i f i.
Proof. by rewrite big_distrr. Qed.

Lemma rsum_opp f : \rsum_i (- f i) = - \rsum_i f i.
Proof.
rewrite (rsum_ext (g := fun i => (-1) * f i)) ?rsum_scal; first by ring.
by move=> i; ring.
Qed.

Lemma rsum_sub f g : \rsum_i (f i - g i) = \rsum_i f i - \rsum_i g i.
Proof. by rewrite /Rminus rsum_add rsum_opp. Qed.

Lemma rsum_zero f : (forall i, f i = 0) -> \rsum_i f i = 0.
Proof. by move=> H; apply: big1 => i _. Qed.

Lemma rsum_le f g : (forall i, f i <= g i) -> \rsum_i f i <= \rsum_i g i.
Proof.
move=> H; apply: (big_ind2 (fun x y => x <= y)) => [|x1 x2 y1 y2 H1 H2|i _] //; lra.
Qed.

Lemma rsum_ge0 f : (forall i, 0 <= f i) -> 0 <= \rsum_i f i.
Proof. by move=> H; apply: big_ind => [|x y Hx Hy|i _]; [lra|lra|exact: H]. Qed.

Lemma rsum_abs f : Rabs (\rsum_i f i) <= \rsum_i Rabs (f i).
Proof.
apply: (big_ind2 (fun x y => Rabs x <= y)) => [|x1 x2 y1 y2 H1 H2|i _].
- rewrite Rabs_R0; lra.
- have := Rabs_triang x1 y1; lra.
- lra.
Qed.

Lemma rsum_D1 (j : I) f : \rsum_i f i = f j + \rsum_(i | i != j) f i.
Proof. by rewrite (bigD1 j). Qed.

Lemma rsum_ge_term (j : I) f : (forall i, 0 <= f i) -> f j <= \rsum_i f i.
Proof.
move=> H; rewrite (rsum_D1 j).
have : 0 <= \rsum_(i | i != j) f i by apply: big_ind => *; [lra|lra|exact: H].
lra.
Qed.

Lemma rsum_eq0 f : (forall i, 0 <= f i) -> \rsum_i f i = 0 -> forall i, f i = 0.
Proof. by move=> H H0 i; have := rsum_ge_term i H; have := H i; lra. Qed.

Lemma rsum_single (j : I) f : \rsum_i (if i == j then f i else 0) = f j.
Proof.
by rewrite (rsum_D1 j) eqxx big1 => [|i /negPf ->] //; rewrite Rplus_0_r.
Qed.

Lemma rsum_const c : \rsum_(i | xpredT (i : I)) c = INR #|I| * c.
Proof.
rewrite big_const; elim: #|I| => [|k IH] /=; first by lra.
rewrite IH; case: k {IH} => [|k] /=; lra.
Qed.

Lemma rsum_sqr f : (\rsum_i f i) * (\rsum_i f i) = \rsum_i \rsum_j f i * f j.
Proof. by rewrite big_distrl /=; apply: eq_bigr => i _; rewrite big_distrr. Qed.

End Sums.

Lemma rsum_exchange (I J : finType) (f : I -> J -> R) :
  \rsum_i \rsum_j f i j = \rsum_j \rsum_i f i j.
Proof. exact: exchange_big. Qed.

Lemma rsum_ord0 (f : 'I_0 -> R) : \rsum_i f i = 0.
Proof. exact: big_ord0. Qed.

Lemma rsum_bool (f : bool -> R) : \rsum_b f b = f true + f false.
Proof. by rewrite /index_enum !unlock /= Rplus_0_r. Qed.

(** ** Expectations *)
Section Expectation.
Variable Y : finType.
Implicit Types mu pi f g : Y -> R.

Definition dist mu := (forall y, 0 <= mu y) /\ \rsum_y mu y = 1.
Definition E mu f := \rsum_y mu y * f y.
Definition Var mu f := E mu (fun y => (f y - E mu f) * (f y - E mu f)).
(** [pi << mu]. Top-p and top-k samplers break it. *)
Definition abscont pi mu := forall y, mu y = 0 -> pi y = 0.
Definition Pr mu (A : Y -> bool) := E mu (fun y => if A y then 1 else 0).

Lemma E_ext mu f g : (forall y, mu y <> 0 -> f y = g y) -> E mu f = E mu g.
Proof.
move=> H; apply: rsum_ext => y; case: (Req_dec (mu y) 0) => [->|/H -> //].
by rewrite !Rmult_0_l.
Qed.

Lemma E_eq mu f g : (forall y, f y = g y) -> E mu f = E mu g.
Proof. by move=> H; apply: E_ext => y _. Qed.

Lemma E_add mu f g : E mu (fun y => f y + g y) = E mu f + E mu g.
Proof. by rewrite /E -rsum_add; apply: rsum_ext => y; ring. Qed.

Lemma E_sub mu f g : E mu (fun y => f y - g y) = E mu f - E mu g.
Proof. by rewrite /E -rsum_sub; apply: rsum_ext => y; ring. Qed.

Lemma E_scal mu c f : E mu (fun y => c * f y) = c * E mu f.
Proof. by rewrite /E -rsum_scal; apply: rsum_ext => y; ring. Qed.

Lemma E_opp mu f : E mu (fun y => - f y) = - E mu f.
Proof. by rewrite /E -rsum_opp; apply: rsum_ext => y; ring. Qed.

Lemma E_const mu c : dist mu -> E mu (fun=> c) = c.
Proof.
case=> _ H; rewrite /E (rsum_ext (g := fun y => c * mu y)) ?rsum_scal ?H; first by ring.
by move=> y; ring.
Qed.

Lemma E_le mu f g : dist mu -> (forall y, 0 < mu y -> f y <= g y) -> E mu f <= E mu g.
Proof.
case=> H0 _ H; apply: rsum_le => y; have := H0 y; case => [Hp|<-]; last lra.
by apply: Rmult_le_compat_l; [lra|exact: H].
Qed.

Lemma E_ge0 mu f : dist mu -> (forall y, 0 < mu y -> 0 <= f y) -> 0 <= E mu f.
Proof. by move=> D H; rewrite -(E_const 0 D); apply: E_le. Qed.

Lemma E_sum (I : finType) mu (f : I -> Y -> R) :
  E mu (fun y => \rsum_i f i y) = \rsum_i E mu (f i).
Proof.
by rewrite /E rsum_exchange; apply: rsum_ext => y; rewrite rsum_scal.
Qed.

Lemma E_abs mu f : dist mu -> Rabs (E mu f) <= E mu (fun y => Rabs (f y)).
Proof.
case=> H0 _; apply: Rle_trans; first exact: rsum_abs.
apply: rsum_le => y; rewrite Rabs_mult (Rabs_pos_eq (mu y)) //; lra.
Qed.

Lemma Var_ge0 mu f : dist mu -> 0 <= Var mu f.
Proof. by move=> D; apply: E_ge0 => // y _; exact: sq_ge0. Qed.

Lemma Var_eq mu f : dist mu -> Var mu f = E mu (fun y => f y * f y) - E mu f * E mu f.
Proof.
move=> D; rewrite /Var; set m := E mu f.
rewrite (E_eq _ (g := fun y => f y * f y - (2 * m * f y - m * m))); last by move=> y; ring.
by rewrite E_sub (E_sub _ (fun y => 2 * m * f y)) E_scal E_const // -/m; ring.
Qed.

Lemma E_sq_le mu f : dist mu -> E mu f * E mu f <= E mu (fun y => f y * f y).
Proof. by move=> D; have := Var_ge0 f D; rewrite Var_eq //; lra. Qed.

(** Cauchy-Schwarz. *)
Lemma E_cs mu f g : dist mu ->
  E mu (fun y => f y * g y) * E mu (fun y => f y * g y)
  <= E mu (fun y => f y * f y) * E mu (fun y => g y * g y).
Proof.
move=> D; set a := E mu (fun y => f y * f y); set b := E mu (fun y => g y * g y).
set c := E mu (fun y => f y * g y).
have Ha : 0 <= a by apply: E_ge0 => // y _; exact: sq_ge0.
have Hb : 0 <= b by apply: E_ge0 => // y _; exact: sq_ge0.
have Q t : 0 <= a - 2 * t * c + t * t * b.
  have -> : a - 2 * t * c + t * t * b = E mu (fun y => (f y - t * g y) * (f y - t * g y)).
    rewrite (E_eq _ (g := fun y => f y * f y - (2 * t * (f y * g y) - t * t * (g y * g y)))).
      by rewrite E_sub (E_sub _ (fun y => 2 * t * (f y * g y))) !E_scal -/a -/b -/c; ring.
    by move=> y; ring.
  by apply: E_ge0 => // y _; exact: sq_ge0.
case: (Req_dec b 0) => [b0|bn0].
  case: (Req_dec c 0) => [->|cn0]; first by nra.
  have := Q ((a + 1) / (2 * c)); rewrite b0.
  have -> : 2 * ((a + 1) / (2 * c)) * c = a + 1 by field.
  lra.
have Hbp : 0 < b by lra.
have := Q (c / b).
have -> : a - 2 * (c / b) * c + c / b * (c / b) * b = (a * b - c * c) / b by field.
move=> H; have : 0 <= (a * b - c * c) / b * b by nra.
by rewrite /Rdiv Rmult_assoc Rinv_l //; lra.
Qed.

(** Popoviciu: the variance of a variable in [[a,b]] is at most [(b-a)^2/4]. *)
Theorem popoviciu mu f a b : dist mu -> (forall y, a <= f y <= b) ->
  Var mu f <= (b - a) * (b - a) / 4.
Proof.
move=> D H; rewrite Var_eq //.
have : E mu (fun y => f y * f y) <= (a + b) * E mu f - a * b.
  rewrite -E_scal -(E_const (a * b) D) -E_sub; apply: E_le => // y _.
  by have := H y; nra.
by set m := E mu f; have := Rle_0_sqr (m - (a + b) / 2); rewrite /Rsqr; nra.
Qed.

Lemma E_between mu f a b : dist mu -> (forall y, a <= f y <= b) -> a <= E mu f <= b.
Proof.
move=> D H; rewrite -{1}(E_const a D) -{1}(E_const b D).
by split; apply: E_le => // y _; case: (H y).
Qed.

Lemma Pr_ge0 mu A : dist mu -> 0 <= Pr mu A.
Proof. by move=> D; apply: E_ge0 => // y _; case: (A y); lra. Qed.

Lemma Pr_le mu (A B : Y -> bool) : dist mu -> (forall y, A y -> B y) -> Pr mu A <= Pr mu B.
Proof.
move=> D H; apply: E_le => // y _; case: (A y) (H y) => [-> //|_]; first lra.
by case: (B y); lra.
Qed.

(** Markov's inequality. *)
Lemma markov mu f (A : Y -> bool) c : dist mu -> (forall y, 0 <= f y) ->
  (forall y, A y -> c <= f y) -> c * Pr mu A <= E mu f.
Proof.
move=> D H0 H; rewrite /Pr -E_scal; apply: E_le => // y _.
by case: (A y) (H y) => [/(_ isT)|_]; [lra|rewrite Rmult_0_r].
Qed.

Lemma Pr_union (K : finType) mu (A : K -> Y -> bool) : dist mu ->
  Pr mu (fun y => [exists k, A k y]) <= \rsum_k Pr mu (A k).
Proof.
move=> D; rewrite /Pr -E_sum; apply: E_le => // y _; case: existsP => [[k Hk]|_].
  apply: (Rle_trans _ (if A k y then 1 else 0)); first by rewrite Hk; lra.
  by apply: (rsum_ge_term k (f := fun k => if A k y then 1 else 0)) => j; case: (A j y); lra.
by apply: rsum_ge0 => j; case: (A j y); lra.
Qed.

End Expectation.

(** ** Products of independent coordinates *)
Section Product.
Variables (I Y : finType).
Implicit Types (mu : I -> Y -> R) (w : {ffun I -> Y}).

Definition prodd mu w := \rprod_i mu i (w i).
Definition upd w (i : I) (y : Y) : {ffun I -> Y} :=
  [ffun k => if k == i then y else w k].

Lemma upd_same w i y : upd w i y i = y.
Proof. by rewrite ffunE eqxx. Qed.

Lemma upd_other w i j y : j != i -> upd w i y j = w j.
Proof. by rewrite ffunE => /negPf ->. Qed.

Lemma upd_id w i : upd w i (w i) = w.
Proof. by apply/ffunP => k; rewrite ffunE; case: eqP => [->|]. Qed.

Lemma upd_upd w i y z : upd (upd w i y) i z = upd w i z.
Proof. by apply/ffunP => k; rewrite !ffunE; case: eqP. Qed.

(** The expectation of a product of functions of single coordinates. *)
Lemma E_prod mu (f : I -> Y -> R) :
  E (prodd mu) (fun w => \rprod_i f i (w i)) = \rprod_i E (mu i) (f i).
Proof.
by rewrite /E bigA_distr_bigA; apply: eq_bigr => w _; rewrite /prodd -big_split.
Qed.

Lemma prodd_dist mu : (forall i, dist (mu i)) -> dist (prodd mu).
Proof.
move=> D; split=> [w|].
  by apply: big_ind => [|x y Hx Hy|i _]; [lra|nra|case: (D i)].
have := E_prod mu (fun _ _ => 1).
rewrite /E (rsum_ext (g := prodd mu)) => [->|w]; last by rewrite big1 // Rmult_1_r.
apply: big1 => i _; case: (D i) => _ H; rewrite -[RHS]H.
by apply: rsum_ext => y; rewrite Rmult_1_r.
Qed.

Lemma prodd_upd mu w i y : mu i y * prodd mu w = mu i (w i) * prodd mu (upd w i y).
Proof.
rewrite /prodd (bigD1 i) //= [in RHS](bigD1 i) //= upd_same.
have -> : \big[Rmult/1]_(k | k != i) mu k (upd w i y k) = \big[Rmult/1]_(k | k != i) mu k (w k).
  by apply: eq_bigr => k Hk; rewrite upd_other.
ring.
Qed.

(** Drawing one coordinate again does not change an expectation. *)
Lemma E_resample mu i F : dist (mu i) ->
  E (prodd mu) F = E (prodd mu) (fun w => E (mu i) (fun y => F (upd w i y))).
Proof.
move=> [_ D]; rewrite /E.
transitivity (\rsum_w \rsum_y (prodd mu w * F w) * mu i y).
  by apply: rsum_ext => w; rewrite rsum_scal D Rmult_1_r.
transitivity (\rsum_w \rsum_y prodd mu w * (mu i y * F (upd w i y))); last first.
  by apply: rsum_ext => w; rewrite rsum_scal.
rewrite !pair_big /=.
pose h (p : {ffun I -> Y} * Y) := (upd p.1 i p.2, p.1 i).
have hK : involutive h by case=> w y; rewrite /h /= upd_upd upd_id upd_same.
rewrite (reindex_inj (inv_inj hK)) /=; apply: eq_bigr => -[w y] _ /=.
by rewrite -Rmult_assoc (Rmult_comm (prodd mu w)) prodd_upd; ring.
Qed.

(** A function of coordinate [i] is independent of a function of the others. *)
Lemma E_indep mu i f (G : {ffun I -> Y} -> R) : dist (mu i) ->
  (forall w y, G (upd w i y) = G w) ->
  E (prodd mu) (fun w => f (w i) * G w) = E (mu i) f * E (prodd mu) G.
Proof.
move=> D H; rewrite (E_resample _ D) -E_scal; apply: E_eq => w.
rewrite (E_eq _ (g := fun y => G w * f y)) ?E_scal; first by ring.
by move=> y; rewrite upd_same H; ring.
Qed.

Lemma E_coord mu i f : (forall i, dist (mu i)) ->
  E (prodd mu) (fun w => f (w i)) = E (mu i) f.
Proof.
move=> D; rewrite (E_eq _ (g := fun w => f (w i) * 1)) ?E_indep //; last by move=> w; ring.
by rewrite E_const ?Rmult_1_r //; exact: prodd_dist.
Qed.

Lemma E_coord2 mu i j f g : (forall i, dist (mu i)) -> i != j ->
  E (prodd mu) (fun w => f (w i) * g (w j)) = E (mu i) f * E (mu j) g.
Proof.
move=> D Hij; rewrite (E_indep (i := i) f (G := fun w => g (w j))) // ?E_coord //.
by move=> w y; rewrite upd_other // eq_sym.
Qed.

(** The variance of a sum of independent centred variables is the sum of the variances. *)
Lemma E_sum_sq mu (f : I -> Y -> R) : (forall i, dist (mu i)) ->
  (forall i, E (mu i) (f i) = 0) ->
  E (prodd mu) (fun w => (\rsum_i f i (w i)) * (\rsum_i f i (w i)))
  = \rsum_i E (mu i) (fun y => f i y * f i y).
Proof.
move=> D H0; rewrite (E_eq _ (g := fun w => \rsum_i \rsum_j f i (w i) * f j (w j))); last first.
  by move=> w; rewrite rsum_sqr.
rewrite E_sum; apply: rsum_ext => i; rewrite E_sum (rsum_D1 i).
rewrite (E_coord i (fun y => f i y * f i y)) // big1 ?Rplus_0_r // => j Hj.
by rewrite E_coord2 1?eq_sym // H0 Rmult_0_l.
Qed.

End Product.

(** ** n independent draws from one distribution *)
Section IID.
Variables (I Y : finType).
Implicit Types (mu f : Y -> R) (w : {ffun I -> Y}).

(** The samples are indexed by a finite type [I]; [n] is its size. *)
Definition nI : R := INR #|I|.
Hypothesis n_pos : (0 < #|I|)%N.

Definition iid mu : {ffun I -> Y} -> R := prodd (fun _ : I => mu).
Definition mean f w := (\rsum_i f (w i)) / nI.

Lemma nI_pos : 0 < nI.
Proof. by apply: lt_0_INR; apply/ltP. Qed.

Lemma iid_dist mu : dist mu -> dist (iid mu).
Proof. by move=> D; apply: prodd_dist. Qed.

Lemma E_iid_coord mu f (i : I) : dist mu -> E (iid mu) (fun w => f (w i)) = E mu f.
Proof. by move=> D; rewrite E_coord. Qed.

Lemma mean_unbiased mu f : dist mu -> E (iid mu) (mean f) = E mu f.
Proof.
move=> D; have Hn := nI_pos.
rewrite (E_eq _ (g := fun w => / nI * \rsum_i f (w i))); last first.
  by move=> w; rewrite /mean; field; lra.
rewrite E_scal E_sum (rsum_ext (g := fun=> E mu f)) => [|i]; last exact: E_iid_coord.
by rewrite rsum_const -/nI; field; lra.
Qed.

(** Mean squared error about any target: variance/n plus squared bias. *)
Lemma mean_mse mu f c : dist mu ->
  E (iid mu) (fun w => (mean f w - c) * (mean f w - c))
  = Var mu f / nI + (E mu f - c) * (E mu f - c).
Proof.
move=> D; have Hn := nI_pos; set m := E mu f.
have Hs w : mean f w - m = / nI * \rsum_i (f (w i) - m).
  by rewrite rsum_sub rsum_const -/nI /mean; field; lra.
rewrite (E_eq _ (g := fun w => / nI * / nI *
    ((\rsum_i (f (w i) - m)) * (\rsum_i (f (w i) - m)))
    + (2 * (m - c) * (mean f w - m) + (m - c) * (m - c)))); last first.
  move=> w; have -> : mean f w - c = (mean f w - m) + (m - c) by ring.
  rewrite (Hs w); ring.
rewrite E_add (E_add _ (fun w => 2 * (m - c) * (mean f w - m))) !E_scal E_sub.
rewrite mean_unbiased // !(E_const _ (iid_dist D)) -/m.
rewrite (E_sum_sq (mu := fun=> mu) (f := fun _ y => f y - m)) //; last first.
  by move=> i; rewrite E_sub E_const // -/m; ring.
by rewrite rsum_const -/nI /Var -/m; field; lra.
Qed.

End IID.

(** ** Derivatives of finite sums *)
Lemma derivable_rsum (I : finType) (f : I -> R -> R) (d : I -> R) t :
  (forall i, derivable_pt_lim (f i) t (d i)) ->
  derivable_pt_lim (fun x => \rsum_i f i x) t (\rsum_i d i).
Proof.
move=> H; rewrite /index_enum; elim: (Finite.enum I) => [|i s IH].
  have -> : \big[Rplus/0]_(i <- [::]) d i = 0 by rewrite big_nil.
  apply: (derivable_pt_lim_ext (fun=> 0)) => [x|]; first by rewrite big_nil.
  exact: derivable_pt_lim_const.
rewrite big_cons.
apply: (derivable_pt_lim_ext (fun x => f i x + \big[Rplus/0]_(j <- s) f j x)) => [x|].
  by rewrite big_cons.
exact: derivable_pt_lim_plus.
Qed.
