//! The lattice's invariant, and every rung against the portable loops.

use super::{CODE_MAX, RowSteps, portable};
use crate::kernel::portable::{f16_from_f32, f32_from_f16};
use crate::kernel::support::guard::Guarded;
use crate::kernel::support::{Random, rungs};
use std::vec::Vec;

const STEP_MIN: f32 = f32::from_bits((127 - 24) << 23);

/// Steps of all magnitudes: powers of two, their neighbours, and random ones between.
fn steps() -> Vec<f32> {
    let mut random = Random::new(41);
    let mut steps = Vec::new();
    for exponent in 103..=142u32 {
        let power = f32::from_bits(exponent << 23);
        steps.extend([power, power.next_up(), power.next_down(), power * 1.5]);
        steps.extend((0..60).map(|_| f32::from_bits(exponent << 23 | random.u32() >> 9)));
    }
    steps.retain(|step| *step >= STEP_MIN);
    steps
}

#[test]
fn the_value_of_a_code_has_that_code_again() {
    let codes: Vec<i16> = (-CODE_MAX..=CODE_MAX).collect();
    let (mut values, mut again) = (std::vec![0; codes.len()], std::vec![0; codes.len()]);
    let mut beyond = 0;
    for step in steps() {
        let steps = RowSteps::Even(step);
        portable::unpack(&codes, steps, &mut values);
        assert!(!values.contains(&0x8000), "minus zero, step {step}");
        let is_finite = |value: &&u16| f32_from_f16(**value).is_finite();
        let finite: Vec<u16> = values.iter().filter(is_finite).copied().collect();
        let first = (values.len() - finite.len()) / 2;
        let within = first..first + finite.len();
        beyond += usize::from(first > 0);
        assert_eq!(portable::pack(&values, steps, &mut again), first == 0, "step {step}");
        assert!(portable::pack(&finite, steps, &mut again[within.clone()]));
        assert_eq!(again[within.clone()], codes[within], "step {step}");
    }
    assert!(beyond > 0, "some steps go beyond what F16 holds");
}

#[test]
fn codes_are_rounded_to_even_and_bounded() {
    let code = |value: f32, step: f32| {
        let mut code = [0];
        portable::pack(&[f16_from_f32(value)], RowSteps::Even(step), &mut code).then_some(code[0])
    };
    for (value, expected) in [(0.5, 0), (1.5, 2), (2.5, 2), (-0.5, 0), (-1.5, -2), (0.75, 1)] {
        assert_eq!(code(value, 1.0), Some(expected), "{value}");
    }
    assert_eq!(code(1023.0, 1.0), Some(1023));
    assert_eq!(code(-1023.0, 1.0), Some(-1023));
    assert_eq!(code(1023.5, 1.0), None, "a tie that goes to 1024");
    assert_eq!(code(-1024.0, 1.0), None);
    assert_eq!(code(65504.0, 60_000.0), Some(1));
    assert_eq!(code(65504.0, 37_000.0), None, "twice the step is no F16");
    for special in [f32::INFINITY, f32::NEG_INFINITY, f32::NAN] {
        assert_eq!(code(special, 1.0), None);
    }
}

/// One over each.
fn reciprocals(steps: &[f32]) -> Vec<f32> {
    steps.iter().map(|step| 1.0 / step).collect()
}

#[test]
fn every_rung_packs_and_unpacks_alike_at_every_length_between_guard_pages() {
    let rungs = rungs();
    let mut random = Random::new(42);
    let (mut values, mut codes) = (Guarded::new(2 * 300), Guarded::new(2 * 300));
    let [mut steps, mut per_one] = core::array::from_fn(|_| Guarded::new(4 * 300));
    for length in 0..=300 {
        let scale = f32::from_bits((115 + random.below(20) as u32) << 23);
        let row: Vec<u16> =
            (0..length).map(|_| f16_from_f32((random.byte() as f32 - 128.0) * scale)).collect();
        let widths: Vec<f32> =
            (0..length).map(|_| scale * (1.0 + random.byte() as f32 / 64.0)).collect();
        let any: Vec<i16> = (0..length).map(|_| random.u16().cast_signed()).collect();
        for ((name, kernels), at_end) in rungs.iter().flat_map(|rung| [(rung, false), (rung, true)])
        {
            let (steps, per_one) = (steps.at(at_end, length), per_one.at(at_end, length));
            steps.copy_from_slice(&widths);
            per_one.copy_from_slice(&reciprocals(&widths));
            for steps in [RowSteps::Each { steps, per_one }, RowSteps::Even(1.1 * scale)] {
                let mut expected = (std::vec![0; length], std::vec![0; length]);
                assert!(portable::pack(&row, steps, &mut expected.0));
                portable::unpack(&any, steps, &mut expected.1);
                let values = values.at::<u16>(at_end, length);
                let codes = codes.at::<i16>(at_end, length);
                values.copy_from_slice(&row);
                assert!(kernels.lattice_pack.call(values, steps, codes), "{name} {length}");
                assert_eq!(*codes, expected.0, "{name} {length}");
                codes.copy_from_slice(&any);
                kernels.lattice_unpack.call(codes, steps, values);
                assert_eq!(*values, expected.1, "{name} {length}");
            }
        }
    }
}

#[test]
fn every_rung_sums_alike_at_every_length_between_guard_pages() {
    let rungs = rungs();
    let mut random = Random::new(44);
    let (mut residuals, mut codes) = (Guarded::new(300), Guarded::new(2 * 300));
    for length in 0..=300 {
        let bytes: Vec<u8> = (0..length).map(|_| random.byte()).collect();
        let base = random.u16().cast_signed();
        let mut expected = (std::vec![0; length], std::vec![0; length]);
        portable::offsets(&bytes, base, &mut expected.0);
        portable::running(&bytes, base, &mut expected.1);
        for ((name, kernels), at_end) in rungs.iter().flat_map(|rung| [(rung, false), (rung, true)])
        {
            let residuals = residuals.at::<u8>(at_end, length);
            let codes = codes.at::<i16>(at_end, length);
            residuals.copy_from_slice(&bytes);
            kernels.sums.offsets(residuals, base, codes);
            assert_eq!(*codes, expected.0, "{name} {length}");
            kernels.sums.running(residuals, base, codes);
            assert_eq!(*codes, expected.1, "{name} {length}");
        }
    }
}

#[test]
fn every_rung_refuses_alike_wherever_the_value_stands() {
    for (name, kernels) in &rungs() {
        let pack = |values: &[u16], steps: RowSteps<'_>| {
            kernels.lattice_pack.call(values, steps, &mut std::vec![0; values.len()])
        };
        for special in [0x7C00, 0xFC00, 0x7C01, 0x7E00, 0xFFFF, 0x6400, 0xE400, 0x63FE] {
            for at in 0..37 {
                let mut values = [0x3C00; 37];
                values[at] = special;
                let fits = pack(&values, RowSteps::Even(1.0));
                assert_eq!(fits, special == 0x63FE, "{name} {special:#06x} at {at}");
                values[at] = 0x7BFF;
                let mut steps = [1.0; 37];
                steps[at] = 37_000.0;
                let per_one = reciprocals(&steps);
                let fits = pack(&values, RowSteps::Each { steps: &steps, per_one: &per_one });
                assert!(!fits, "{name}: a product beyond F16 at {at}");
            }
        }
    }
}

#[test]
fn every_rung_takes_any_code_and_step() {
    let mut random = Random::new(43);
    let codes: Vec<i16> = (i16::MIN..=i16::MAX).collect();
    for (name, kernels) in &rungs() {
        let steps: Vec<f32> = codes.iter().map(|_| f32::from_bits(random.u32() >> 1)).collect();
        let (mut values, mut expected) = (std::vec![0; codes.len()], std::vec![0; codes.len()]);
        let row_steps = RowSteps::Each { steps: &steps, per_one: &steps };
        portable::unpack(&codes, row_steps, &mut expected);
        kernels.lattice_unpack.call(&codes, row_steps, &mut values);
        for at in 0..codes.len() {
            let is_number = !(f32::from(codes[at]) * steps[at]).is_nan();
            assert!(values[at] == expected[at] || !is_number, "{name} {at}");
        }
    }
}

#[test]
#[should_panic]
fn unequal_lengths_are_a_programmer_error() {
    let kernels = crate::kernel::Kernels::portable();
    kernels.lattice_pack.call(&[0; 4], RowSteps::Even(1.0), &mut [0; 3]);
}

#[test]
#[should_panic]
fn a_missing_step_is_a_programmer_error() {
    let kernels = crate::kernel::Kernels::portable();
    let steps = RowSteps::Each { steps: &[1.0; 3], per_one: &[1.0; 4] };
    kernels.lattice_unpack.call(&[0; 4], steps, &mut [0; 4]);
}
