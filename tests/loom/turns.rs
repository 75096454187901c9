//! [`Turn`]: host and device in turns.

use crate::{Bytes, check};
use loom::thread::spawn;
use mzcache::sync::{Entry, Party, Turn};
use std::sync::Arc;

/// One use by a party, if it is let in: readers of one party together, a hand-over alone.
fn use_once(turn: &Turn, party: Party, bytes: &Bytes, fails: bool) -> bool {
    match turn.enter(party) {
        Entry::Busy => return false,
        Entry::Joined => {}
        Entry::HandOver => {
            bytes.add_one();
            let other = if party == Party::Host { Party::Device } else { Party::Host };
            turn.settle(if fails { other } else { party }, !fails);
            if fails {
                return true;
            }
        }
    }
    bytes.read();
    turn.leave();
    true
}

fn parties(others: [Party; 2], fails: bool) {
    check(4, move || {
        let (turn, bytes) = (Arc::new(Turn::new()), Bytes::default());
        let others = others.map(|party| {
            let (turn, bytes) = (turn.clone(), bytes.clone());
            spawn(move || use_once(&turn, party, &bytes, fails))
        });
        use_once(&turn, Party::Host, &bytes, false);
        for other in others {
            other.join().unwrap();
        }
        // Nobody is in any more, so everybody gets in.
        assert!(use_once(&turn, Party::Device, &bytes, false));
        assert_eq!(turn.party(), Party::Device);
        assert!(use_once(&turn, Party::Host, &bytes, false));
    });
}

#[test]
fn a_hand_over_sees_what_the_other_party_wrote_and_meets_nobody() {
    parties([Party::Device, Party::Host], false);
    parties([Party::Device, Party::Device], false);
}

#[test]
fn a_hand_over_that_failed_leaves_it_where_it_was() {
    parties([Party::Device, Party::Host], true);
    parties([Party::Device, Party::Device], true);
}
