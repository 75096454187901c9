//! [`Lock`] and the ways in which threads wait for a word: nobody sleeps through the last wake-up.

use crate::ports::{Parking, leak};
use crate::{Bytes, check};
use loom::thread::spawn;
use mzcache::port::Park;
use mzcache::port::lock::Lock;
use mzcache::sync::{Flag, Word};
use std::sync::Arc;

#[test]
fn a_lock_is_one_thread_s_at_a_time_and_everybody_gets_it() {
    check(3, || {
        let park: &'static Parking = leak(Parking::default());
        let lock = Arc::new(Lock::new(Bytes::default(), park));
        let others = [(); 2].map(|()| {
            let lock = lock.clone();
            spawn(move || lock.lock().add_one())
        });
        lock.lock().add_one();
        for other in others {
            other.join().unwrap();
        }
        assert_eq!(lock.lock().read(), 3);
    });
}

/// What `wait` and `set` of the gates do, with one word.
#[test]
fn who_waits_at_a_word_hears_of_its_change_and_sees_what_came_before() {
    const CLOSED: u32 = 0;
    const OPEN: u32 = 1;
    check(4, || {
        let park: &'static Parking = leak(Parking::default());
        let (word, bytes) = (Arc::new(Word::new(CLOSED)), Bytes::default());
        let waiters = [(); 2].map(|()| {
            let (word, bytes) = (word.clone(), bytes.clone());
            spawn(move || {
                while word.load() == CLOSED {
                    park.wait(&word, CLOSED, None);
                }
                assert_eq!(bytes.read(), 7);
            })
        });
        bytes.write(7);
        assert_eq!(word.swap(OPEN), CLOSED);
        park.wake_all(&word);
        for waiter in waiters {
            waiter.join().unwrap();
        }
    });
}

#[test]
fn who_sees_a_flag_sees_what_came_before() {
    check(4, || {
        let (flag, bytes) = (Arc::new(Flag::new()), Bytes::default());
        let other = {
            let (flag, bytes) = (flag.clone(), bytes.clone());
            spawn(move || {
                bytes.write(7);
                flag.raise();
            })
        };
        if flag.is_raised() {
            assert_eq!(bytes.read(), 7);
        }
        other.join().unwrap();
        assert!(flag.is_raised());
    });
}
