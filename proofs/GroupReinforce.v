(** Group-relative REINFORCE as the gradient of a pairwise regression, whatever policy
    drew the samples. *)
Require Import Reals Lra Psatz.
From mathcomp Require Import all_ssreflect.
From OGRPO Require Import Prob Calculus Divergence.

Set Implicit Arguments.
Unset Strict Implicit.
Unset Printing Implicit Defensive.

Open Scope R_scope.

Section Pairwise.
Variable I : finType.
Implicit Types (w a b r s : I -> R).

Definition wsum w a := \rsum_i w i * a i.
Definition wtotal w := \rsum_i w i.
Definition wmean w a := wsum w a / wtotal w.

(** Each unordered pair once: half of the double sum. *)
Definition pairs w a := / 2 * \rsum_i \rsum_j w i * w j * ((a i - a j) * (a i - a j)).

Lemma pairs_eq w a : pairs w a
  = wtotal w * wsum w (fun i => a i * a i) - wsum w a * wsum w a.
Proof.
have Row i : \rsum_j w i * w j * ((a i - a j) * (a i - a j))
  = w i * (a i * a i) * wtotal w - 2 * (w i * a i) * wsum w a
    + w i * wsum w (fun j => a j * a j).
  by rewrite /wtotal /wsum -!rsum_scal -rsum_sub -rsum_add; apply: rsum_ext => j; ring.
rewrite /pairs (rsum_ext Row) rsum_add rsum_sub.
rewrite (rsum_ext (f := fun i => w i * (a i * a i) * wtotal w)
  (g := fun i => wtotal w * (w i * (a i * a i)))); last by move=> i; ring.
rewrite (rsum_ext (f := fun i => 2 * (w i * a i) * wsum w a)
  (g := fun i => 2 * wsum w a * (w i * a i))); last by move=> i; ring.
rewrite (rsum_ext (f := fun i => w i * wsum w (fun j => a j * a j))
  (g := fun i => wsum w (fun j => a j * a j) * w i)); last by move=> i; ring.
by rewrite !rsum_scal -/(wsum w (fun i => a i * a i)) -/(wsum w a) -/(wtotal w); field.
Qed.

Lemma wsum_sub w a b : wsum w (fun i => a i - b i) = wsum w a - wsum w b.
Proof. by rewrite /wsum -rsum_sub; apply: rsum_ext => i; ring. Qed.

Lemma wsum_scal w c a : wsum w (fun i => c * a i) = c * wsum w a.
Proof. by rewrite /wsum -rsum_scal; apply: rsum_ext => i; ring. Qed.

(** The covariance term: [W sum w_i (r_i - rbar_w) s_i]. *)
Definition covariance w r s := wtotal w * wsum w (fun i => (r i - wmean w r) * s i).

Lemma covariance_eq w r s : wtotal w <> 0 ->
  covariance w r s = wtotal w * wsum w (fun i => r i * s i) - wsum w r * wsum w s.
Proof.
move=> H; rewrite /covariance.
have -> : wsum w (fun i => (r i - wmean w r) * s i)
  = wsum w (fun i => r i * s i) - wmean w r * wsum w s.
  by rewrite -wsum_scal -wsum_sub; apply: rsum_ext => i; ring.
by rewrite /wmean; field.
Qed.

(** At any parameter: the pairwise loss is a covariance with the log-ratio, regularised by
    its spread over the group. *)
Theorem pairwise_expansion w r tau l : wtotal w <> 0 ->
  pairs w (fun i => r i - tau * l i)
  = pairs w r - 2 * tau * covariance w r l + tau * tau * pairs w l.
Proof.
move=> H; rewrite covariance_eq // !pairs_eq wsum_sub wsum_scal.
have -> : wsum w (fun i => (r i - tau * l i) * (r i - tau * l i))
  = wsum w (fun i => r i * r i) - 2 * tau * wsum w (fun i => r i * l i)
    + tau * tau * wsum w (fun i => l i * l i).
  by rewrite /wsum -!rsum_scal -rsum_sub -rsum_add; apply: rsum_ext => i; ring.
ring.
Qed.

(** ** The gradient at the sampling parameter *)

(** [l i t] is the log-ratio of sample [i] along a path through the current parameter. *)
Variables (l : I -> R -> R) (s : I -> R).
Hypothesis l0 : forall i, l i 0 = 0.
Hypothesis l_der : forall i, D (l i) 0 (s i).

Lemma D_wsum w a : D (fun t => wsum w (fun i => a i * l i t)) 0 (wsum w (fun i => a i * s i)).
Proof.
apply: derivable_rsum => i.
apply: (D_eq (D_mult (D_const (w i) 0) (D_mult (D_const (a i) 0) (l_der i)))).
ring.
Qed.

Lemma D_log w : D (fun t => wsum w (fun i => l i t)) 0 (wsum w s).
Proof.
apply: derivable_rsum => i; apply: (D_eq (D_mult (D_const (w i) 0) (l_der i))).
ring.
Qed.

Lemma D_spread w : D (fun t => pairs w (fun i => l i t)) 0 0.
Proof.
apply: (derivable_pt_lim_ext (fun t => wtotal w * wsum w (fun i => l i t * l i t)
   - wsum w (fun i => l i t) * wsum w (fun i => l i t))) => [t|]; first by rewrite pairs_eq.
have Z : wsum w (fun i => l i 0) = 0 by apply: rsum_zero => i; rewrite l0; ring.
have H1 : D (fun t => wsum w (fun i => l i t * l i t)) 0 0.
  apply: (D_eq (l := \rsum_i 0)); last by apply: rsum_zero.
  apply: derivable_rsum => i.
  apply: (D_eq (D_mult (D_const (w i) 0) (D_mult (l_der i) (l_der i)))).
  by rewrite l0; ring.
have H2 := D_log w.
apply: (D_eq (D_minus (D_mult (D_const (wtotal w) 0) H1) (D_mult H2 H2))).
by rewrite Z; ring.
Qed.

Lemma D_covariance w r : D (fun t => covariance w r (fun i => l i t)) 0 (covariance w r s).
Proof.
apply: (D_eq (D_mult (D_const (wtotal w) 0) (D_wsum w (fun i => r i - wmean w r)))).
by rewrite /covariance; ring.
Qed.

(** Weighted group-relative REINFORCE: minus the gradient of the pairwise loss over [2 tau]. *)
Theorem pairwise_gradient w r tau : wtotal w <> 0 ->
  D (fun t => pairs w (fun i => r i - tau * l i t)) 0 (- (2 * tau * covariance w r s)).
Proof.
move=> H; apply: (derivable_pt_lim_ext (fun t => pairs w r
   - 2 * tau * covariance w r (fun i => l i t) + tau * tau * pairs w (fun i => l i t))) => [t|].
  by rewrite pairwise_expansion.
apply: (D_eq (D_plus (D_minus (D_const (pairs w r) 0)
  (D_mult (D_const (2 * tau) 0) (D_covariance w r)))
  (D_mult (D_const (tau * tau) 0) (D_spread w)))).
ring.
Qed.

(** OPMD replaces the spread of the log-ratio by its mean square: same gradient here, and a
    larger loss elsewhere by [(wsum l)^2]. *)
Definition opmd w r tau (x : I -> R) :=
  pairs w r - 2 * tau * covariance w r x + tau * tau * (wtotal w * wsum w (fun i => x i * x i)).

Theorem opmd_minus_pairwise w r tau x : wtotal w <> 0 ->
  opmd w r tau x - pairs w (fun i => r i - tau * x i) = tau * tau * (wsum w x * wsum w x).
Proof. by move=> H; rewrite /opmd pairwise_expansion // (pairs_eq w x); ring. Qed.

Theorem opmd_gradient w r tau : wtotal w <> 0 ->
  D (fun t => opmd w r tau (fun i => l i t)) 0 (- (2 * tau * covariance w r s)).
Proof.
move=> H; have H2 := D_log w.
apply: (derivable_pt_lim_ext (fun t => pairs w (fun i => r i - tau * l i t)
  + tau * tau * (wsum w (fun i => l i t) * wsum w (fun i => l i t)))) => [t|].
  by have := opmd_minus_pairwise r tau (fun i => l i t) H; lra.
have Z : wsum w (fun i => l i 0) = 0 by apply: rsum_zero => i; rewrite l0; ring.
apply: (D_eq (D_plus (pairwise_gradient r tau H)
  (D_mult (D_const (tau * tau) 0) (D_mult H2 H2)))).
by rewrite Z; ring.
Qed.

(** AsymRE: lowering the baseline by [c] adds [c] times the sum of the scores. *)
Theorem asymre_extra w r c : wsum w (fun i => (r i - (wmean w r - c)) * s i)
  = wsum w (fun i => (r i - wmean w r) * s i) + c * wsum w s.
Proof. by rewrite /wsum -rsum_scal -rsum_add; apply: rsum_ext => i; ring. Qed.

(** RED-Weight with the unweighted mean as the baseline: an extra likelihood push that no
    symmetric pair weighting gives. *)
Theorem red_weight_extra w r (b : R) : wsum w (fun i => (r i - b) * s i)
  = wsum w (fun i => (r i - wmean w r) * s i) + (wmean w r - b) * wsum w s.
Proof. by rewrite /wsum -rsum_scal -rsum_add; apply: rsum_ext => i; ring. Qed.

End Pairwise.

(** Equal weights: [K^-2] times the pair sum has gradient [-2 tau K^-1 sum (r_i - rbar) s_i]. *)
Theorem group_reinforce_gradient (I : finType) (r s : I -> R) (l : I -> R -> R) tau :
  (0 < #|I|)%N -> (forall i, l i 0 = 0) -> (forall i, D (l i) 0 (s i)) ->
  let K := INR #|I| in
  let rbar := (\rsum_i r i) / K in
  D (fun t => / (K * K) * (/ 2 * \rsum_i \rsum_j
      (r i - tau * l i t - (r j - tau * l j t)) * (r i - tau * l i t - (r j - tau * l j t))))
    0 (- (2 * tau) * (/ K * \rsum_i (r i - rbar) * s i)).
Proof.
move=> n_pos H0 H1 K rbar; have K0 : 0 < K by apply: lt_0_INR; apply/ltP.
pose w (_ : I) := / K.
have W : wtotal w = 1 by rewrite /wtotal /w rsum_const -/K; field; lra.
have M : wmean w r = rbar.
  by rewrite /wmean W /wsum /w rsum_scal /rbar; field; lra.
apply: (derivable_pt_lim_ext (fun t => pairs w (fun i => r i - tau * l i t))) => [t|].
  set S := \rsum_i \rsum_j _; suff E1 : \rsum_i \rsum_j w i * w j *
      ((r i - tau * l i t - (r j - tau * l j t)) * (r i - tau * l i t - (r j - tau * l j t)))
    = / (K * K) * S by rewrite /pairs E1; ring.
  rewrite /S -rsum_scal; apply: rsum_ext => i; rewrite -rsum_scal.
  by apply: rsum_ext => j; rewrite /w; field; lra.
have W0 : wtotal w <> 0 by rewrite W; lra.
apply: (D_eq (pairwise_gradient H0 H1 r tau W0)).
rewrite /covariance W M /wsum /w rsum_scal; ring.
Qed.

(** RED-Drop: 0/1 weights, and the mean of the kept subset. *)
Theorem red_drop_mean (I : finType) (A : pred I) (r : I -> R) :
  let w := fun i => if A i then 1 else 0 in
  wmean w r = (\rsum_(i | A i) r i) / INR #|A|.
Proof.
move=> w; rewrite /wmean /wsum /wtotal; congr (_ / _).
  by rewrite [RHS]big_mkcond; apply: rsum_ext => i; rewrite /w; case: (A i); ring.
rewrite /w -big_mkcond big_const; elim: #|A| => [|k IH] //=.
by rewrite IH; case: k {IH} => [|k] /=; lra.
Qed.

(** In expectation AsymRE's extra term is [c KL(mu || pi)] plus a constant. *)
Theorem asymre_kl (Y : finType) (mu pi : Y -> R) : dist mu -> dist pi -> abscont mu pi ->
  - E mu (fun y => ln (pi y)) = kl mu pi - E mu (fun y => ln (mu y)).
Proof.
move=> [M0 _] [P0 _] A.
suff : kl mu pi = E mu (fun y => ln (mu y)) - E mu (fun y => ln (pi y)) by lra.
rewrite -E_sub; apply: rsum_ext => y.
case: (M0 y) => [H|<-]; last by rewrite !Rmult_0_l.
case: (P0 y) => [Hp|Hp]; last by have := A y (esym Hp); lra.
rewrite /ratio /Rdiv ln_mult ?ln_Rinv //; exact: Rinv_0_lt_compat.
Qed.
