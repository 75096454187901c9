//! [`Access`] and [`PartSet`]: who may touch a buffer, and who sees what was written to it.

use crate::{Bytes, check};
use loom::thread::{spawn, yield_now};
use mzcache::sync::{Access, PartSet};
use std::sync::Arc;

/// An access word that was claimed, prepared, and published where wanted.
fn prepared() -> Arc<Access> {
    let access = Access::new();
    assert!(access.claim() && access.prepare());
    Arc::new(access)
}

fn resident() -> Arc<Access> {
    let access = prepared();
    assert!(access.publish());
    access
}

#[test]
fn a_lease_sees_parts_that_were_filled_at_once() {
    check(3, || {
        let access = prepared();
        let parts = [Bytes::default(), Bytes::default()];
        for part in parts.clone() {
            let access = access.clone();
            assert!(access.begin_part());
            spawn(move || {
                part.write(7);
                access.end_part();
            });
        }
        assert!(!access.lease(), "it is being filled");
        while !access.publish() {
            yield_now();
        }
        assert!(!access.begin_part());
        let reader = {
            let (access, part) = (access.clone(), parts[0].clone());
            spawn(move || {
                assert!(access.lease());
                assert_eq!(part.read(), 7);
                access.unlease();
            })
        };
        assert!(access.lease());
        assert_eq!(parts[1].read(), 7);
        access.unlease();
        reader.join().unwrap();
    });
}

/// The publisher tells nobody: a reader finds the word resident by itself.
#[test]
fn a_lease_that_meets_a_publication_sees_the_bytes_or_is_refused() {
    check(4, || {
        let (access, bytes) = (prepared(), Bytes::default());
        let filler = {
            let (access, bytes) = (access.clone(), bytes.clone());
            spawn(move || {
                assert!(access.begin_part());
                bytes.write(7);
                access.end_part();
                assert!(access.publish());
            })
        };
        if access.lease() {
            assert_eq!(bytes.read(), 7);
            access.unlease();
        }
        filler.join().unwrap();
        assert!(access.lease());
    });
}

#[test]
fn a_buffer_is_released_after_its_last_lease_only() {
    check(4, || {
        let (access, bytes) = (resident(), Bytes::default());
        let readers = [(); 2].map(|()| {
            let (access, bytes) = (access.clone(), bytes.clone());
            spawn(move || {
                if access.lease() {
                    bytes.read();
                    access.unlease();
                }
            })
        });
        let is_released = access.lock_to_release();
        if is_released {
            bytes.write(0);
            assert!(access.vacate());
        }
        for reader in readers {
            reader.join().unwrap();
        }
        assert!(is_released || access.lock_to_release());
    });
}

#[test]
fn one_of_two_releases_what_is_prepared_or_resident() {
    check(4, || {
        let (access, bytes) = (prepared(), Bytes::default());
        let release = |access: &Access, bytes: &Bytes| {
            let is_ours = access.lock_to_release();
            if is_ours {
                bytes.add_one();
                assert!(access.vacate());
            }
            is_ours
        };
        let other = {
            let (access, bytes) = (access.clone(), bytes.clone());
            spawn(move || release(&access, &bytes))
        };
        let publisher = {
            let access = access.clone();
            spawn(move || access.publish())
        };
        let ours = release(&access, &bytes);
        let theirs = other.join().unwrap();
        publisher.join().unwrap();
        // Whoever finds the word published between its two looks is refused, and so may both be.
        assert!(!(ours && theirs));
        assert!(ours || theirs || access.lock_to_release());
        assert_eq!(bytes.read(), u32::from(ours || theirs));
    });
}

#[test]
fn an_absent_buffer_is_claimed_by_one_who_sees_the_last_holder_s_writes() {
    check(4, || {
        let (access, bytes) = (resident(), Bytes::default());
        let claimers = [(); 2].map(|()| {
            let (access, bytes) = (access.clone(), bytes.clone());
            spawn(move || {
                let is_ours = access.claim();
                if is_ours {
                    bytes.add_one();
                    assert!(access.prepare());
                }
                is_ours
            })
        });
        assert!(access.lock_to_release());
        bytes.add_one();
        assert!(access.vacate());
        let claims = claimers.map(|claimer| u32::from(claimer.join().unwrap()));
        let claims: u32 = claims.iter().sum();
        assert!(claims <= 1);
        assert_eq!(bytes.read(), 1 + claims);
    });
}

#[test]
fn who_locks_next_sees_what_the_last_one_wrote() {
    check(4, || {
        let (access, bytes) = (resident(), Bytes::default());
        let write = |access: &Access, bytes: &Bytes| {
            let is_ours = access.lock();
            if is_ours {
                bytes.add_one();
                assert!(access.unlock());
            }
            u32::from(is_ours)
        };
        let others = [(); 2].map(|()| {
            let (access, bytes) = (access.clone(), bytes.clone());
            spawn(move || write(&access, &bytes))
        });
        if access.lease() {
            bytes.read();
            access.unlease();
        }
        let others: u32 = others.map(|other| other.join().unwrap()).iter().sum();
        assert_eq!(bytes.read(), others);
        assert_eq!(write(&access, &bytes), 1);
    });
}

/// A resident buffer for which some contend: `judge` says of one who was refused the lock whether
/// it may try again. `buffers` has the same of the buffers themselves.
fn refusal(judge: fn(&Access) -> bool) {
    check(4, move || {
        let access = resident();
        let others = [(); 2].map(|()| {
            let access = access.clone();
            spawn(move || {
                if access.lock() {
                    assert!(access.unlock());
                }
            })
        });
        if access.lock() {
            assert!(access.unlock());
        } else {
            assert!(judge(&access), "a resident buffer was called absent");
        }
        for other in others {
            other.join().unwrap();
        }
    });
}

#[test]
fn one_look_never_takes_a_contended_buffer_for_an_absent_one() {
    refusal(Access::may_be_had_later);
}

/// What `Buffers` once did. The first look finds it free, since the one who had it let go; then
/// the other one takes it, and the second look does not find it free.
#[test]
#[should_panic(expected = "a resident buffer was called absent")]
fn two_looks_take_a_contended_buffer_for_an_absent_one() {
    refusal(|access| {
        let is_used = access.users() > 0;
        let is_free = access.may_be_had_later() && access.users() == 0;
        is_used || is_free
    });
}

#[test]
fn a_part_is_claimed_once_and_handed_on_with_its_bytes() {
    check(4, || {
        let parts = Arc::new(PartSet::new());
        let bytes = Bytes::default();
        let fill = |parts: &PartSet, bytes: &Bytes| {
            let is_ours = parts.claim(5);
            if is_ours {
                bytes.add_one();
                assert!(parts.unclaim(5));
            }
            u32::from(is_ours)
        };
        let others = [(); 2].map(|()| {
            let (parts, bytes) = (parts.clone(), bytes.clone());
            spawn(move || {
                // Of its neighbour nobody takes notice.
                assert!(parts.claim(4) || parts.claim(6));
                fill(&parts, &bytes)
            })
        });
        let ours = fill(&parts, &bytes);
        let others: u32 = others.map(|other| other.join().unwrap()).iter().sum();
        assert!(ours + others >= 1);
        assert!(!parts.claim(4) && !parts.claim(6) && parts.claim(5));
        assert_eq!(bytes.read(), ours + others);
    });
}
