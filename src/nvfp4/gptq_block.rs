//! What GPTQ does within one block, for a vector of rows at a time: the scale searched with the errors carried on, and the
//! descent of single codes.

use super::{
    BLOCK, E2M1_MAX, KERNEL_SAFE_MIN_CODE, e4m3,
    gptq_plan::{BlockFactor, BlockPlan},
    lanes,
    simd::Simd,
};

// Loops rather than closures in what follows: a closure that is not inlined would not be compiled for the vectors.

/// Scale codes tried below and above that of the max rule.
const CODES_BELOW: u32 = 16;
const CODES_ABOVE: u32 = 8;

/// The numbers of a block: one vector of rows a column.
pub(super) type Block<S> = [<S as Simd>::F; BLOCK];

/// A block's choice.
#[derive(Clone, Copy)]
pub(super) struct Choice<S: Simd> {
    pub(super) scale: S::U,
    pub(super) cost: S::F,
}

/// The code of the scale at which the largest target is 6.
#[inline(always)]
pub(super) fn max_rule<S: Simd>(targets: &Block<S>) -> S::U {
    let mut amax = S::splat(0.0);
    for &target in targets {
        amax = S::max(S::abs(target), amax);
    }
    lanes::round_scale::<S>(S::div(amax, S::splat(E2M1_MAX)), S::splat_u(u32::from(KERNEL_SAFE_MIN_CODE)))
}

/// The cheapest scale near the code `around`, the lowest of equals, unless `best` is as cheap.
#[inline(always)]
pub(super) fn best_scale<S: Simd>(
    targets: &Block<S>,
    origin: &Block<S>,
    factor: &BlockFactor,
    around: S::U,
    mut best: Choice<S>,
) -> Choice<S> {
    let lowest =
        S::sub_u(S::max_u(around, S::splat_u(u32::from(KERNEL_SAFE_MIN_CODE) + CODES_BELOW)), S::splat_u(CODES_BELOW));
    let highest = S::min_u(S::add_u(around, S::splat_u(CODES_ABOVE)), S::splat_u(u32::from(e4m3::MAX_CODE)));
    for step in 0..=CODES_BELOW + CODES_ABOVE {
        let scale = S::min_u(S::add_u(lowest, S::splat_u(step)), highest);
        let (cost, _) = round_block::<S>(targets, origin, factor, scale);
        let better = S::lt(cost, best.cost);
        best.scale = S::select_u(better, scale, best.scale);
        best.cost = S::select(better, cost, best.cost);
    }
    best
}

/// Rounds a block at a scale, column by column, each target carrying the errors before it. Returns the cost and the errors,
/// `origin` - decoded.
#[inline(always)]
pub(super) fn round_block<S: Simd>(
    targets: &Block<S>,
    origin: &Block<S>,
    factor: &BlockFactor,
    scale: S::U,
) -> (S::F, Block<S>) {
    let step = lanes::decode::<S>(scale);
    let inverse_step = S::div(S::splat(1.0), step);
    let mut cost = S::splat(0.0);
    let mut errors = [S::splat(0.0); BLOCK];
    for j in 0..BLOCK {
        let mut target = targets[j];
        for (&feedback, &error) in factor.feedback[j].iter().zip(&errors[..j]) {
            target = S::add(target, S::mul(S::splat(feedback), error));
        }
        let decoded = S::mul(round::<S>(S::mul(target, inverse_step)), step);
        let distance = S::sub(target, decoded);
        cost = S::add(cost, S::mul(S::splat(factor.cost[j]), S::mul(distance, distance)));
        errors[j] = S::sub(origin[j], decoded);
    }
    (cost, errors)
}

/// What given errors cost.
#[inline(always)]
pub(super) fn cost<S: Simd>(errors: &Block<S>, factor: &BlockFactor) -> S::F {
    let mut cost = S::splat(0.0);
    for j in 0..BLOCK {
        let mut distance = errors[j];
        for (&feedback, &error) in factor.feedback[j].iter().zip(&errors[..j]) {
            distance = S::add(distance, S::mul(S::splat(feedback), error));
        }
        cost = S::add(cost, S::mul(S::splat(factor.cost[j]), S::mul(distance, distance)));
    }
    cost
}

/// One sweep: each code moves to the one nearest to the minimum along its column, all else fixed.
#[inline(always)]
pub(super) fn descend<S: Simd>(
    weights: &Block<S>,
    errors: &mut Block<S>,
    pull: &Block<S>,
    plan: &BlockPlan,
    scale: S::U,
) {
    let step = lanes::decode::<S>(scale);
    let inverse_step = S::div(S::splat(1.0), step);
    for j in 0..BLOCK {
        let gradient = S::add(pull[j], dot::<S>(&plan.hessian[j], errors));
        let decoded = S::sub(weights[j], errors[j]);
        let minimum = S::add(decoded, S::mul(gradient, S::splat(1.0 / plan.hessian[j][j])));
        let moved = S::mul(round::<S>(S::mul(minimum, inverse_step)), step);
        let (near, now) = (S::sub(moved, minimum), S::sub(decoded, minimum));
        let better = S::lt(S::abs(near), S::abs(now));
        errors[j] = S::select(better, S::sub(weights[j], moved), errors[j]);
    }
}

/// The nearest E2M1 numbers.
#[inline(always)]
fn round<S: Simd>(x: S::F) -> S::F {
    let (sum, magic) = lanes::round_e2m1::<S>(S::abs(x));
    let sign = S::and(S::bits(x), S::splat_u(0x8000_0000));
    S::from_bits(S::or(S::bits(S::sub(sum, magic)), sign))
}

#[inline(always)]
pub(super) fn add<S: Simd>(a: &Block<S>, b: &Block<S>) -> Block<S> {
    let mut sums = *a;
    for j in 0..BLOCK {
        sums[j] = S::add(a[j], b[j]);
    }
    sums
}

#[inline(always)]
pub(super) fn dot<S: Simd>(coefficients: &[f32; BLOCK], x: &Block<S>) -> S::F {
    let mut sum = S::splat(0.0);
    for (&coefficient, &x) in coefficients.iter().zip(x) {
        sum = S::add(sum, S::mul(S::splat(coefficient), x));
    }
    sum
}
