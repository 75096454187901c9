//! Seeds one after the other, on as many threads as there are cores.

use crate::device::Mishap;
use crate::life::{self, Sums};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// Seeds of a run that asks for nothing else.
const USUAL: u64 = 300;

fn variable(name: &str, otherwise: u64) -> u64 {
    let text = std::env::var(name).unwrap_or_default();
    if text.is_empty() { otherwise } else { text.parse().expect(name) }
}

fn add(sums: &mut Sums, more: &Sums) {
    sums.operations += more.operations;
    sums.actions += more.actions;
    sums.points += more.points;
    sums.power_cuts += more.power_cuts;
    sums.recovered += more.recovered;
    sums.losses += more.losses;
    sums.cancelled += more.cancelled;
    sums.deaths += more.deaths;
    let add = |(sum, more): (&mut u64, &u64)| *sum += more;
    sums.mishaps.iter_mut().zip(&more.mishaps).for_each(add);
    sums.looks.iter_mut().zip(&more.looks).for_each(add);
}

/// A simulator in which something never happens tests nothing of it.
fn check_marks(sums: &Sums) {
    for mishap in Mishap::ALL {
        assert!(sums.mishaps[mishap as usize] > 0, "{mishap:?} never happened");
    }
    let Sums { power_cuts, recovered, losses, cancelled, deaths, .. } = *sums;
    let others = [power_cuts, recovered, losses, cancelled, deaths];
    assert!(others.iter().chain(&sums.looks).all(|count| *count > 10), "{sums:?}");
}

#[test]
fn seeds() {
    let (first, count) = (variable("MZ_SEED", 0), variable("MZ_SEEDS", USUAL));
    let next = AtomicU64::new(first);
    let all = Mutex::new((Sums::default(), Vec::new()));
    let threads = std::thread::available_parallelism().map_or(1, |threads| threads.get());
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= first + count || all.lock().unwrap().1.len() >= 5 {
                        return;
                    }
                    let result = life::run(seed, count == 1);
                    let mut all = all.lock().unwrap();
                    match result {
                        Ok(sums) => add(&mut all.0, &sums),
                        Err(why) => all.1.push((seed, why)),
                    }
                }
            });
        }
    });
    let (sums, failures) = all.into_inner().unwrap();
    for (seed, why) in &failures {
        println!("{why}\nMZ_SEED={seed} MZ_SEEDS=1 cargo test --test sim seeds\n");
    }
    println!("{count} seeds from {first}: {sums:?}");
    assert!(failures.is_empty(), "{} seeds failed", failures.len());
    if count >= USUAL {
        check_marks(&sums);
    }
}

#[test]
fn a_seed_is_the_same_run_every_time() {
    for seed in [3, 4, 5] {
        let once = life::run(seed, false).unwrap();
        assert_eq!(format!("{once:?}"), format!("{:?}", life::run(seed, false).unwrap()));
    }
}
