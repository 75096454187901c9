//! [`Buffers`]: regions are written and read as their access words allow, and losers are told so.

use crate::ports::{Memory, leak, spawn};
use crate::{Bytes, check};
use mzcache::Code;
use mzcache::arena::{Arena, Sizer};
use mzcache::port::Use;
use mzcache::port::buffers::Buffers;
use mzcache::sync::Word;
use std::mem::MaybeUninit;
use std::sync::Arc;

fn one_slot() -> (&'static Buffers, &'static Memory) {
    let memory = leak(Memory::default());
    let mut sizer = Sizer::new();
    Buffers::size(&mut sizer, 1).unwrap();
    let bytes = sizer.required().unwrap();
    let mut arena = Arena::new(Vec::leak(vec![MaybeUninit::uninit(); bytes])).unwrap();
    (leak(Buffers::new(&mut arena, 1, memory).unwrap()), memory)
}

fn resident() -> (&'static Buffers, &'static Memory) {
    let (buffers, memory) = one_slot();
    buffers.allocate(0, Use::Kv, 8, 8).unwrap();
    buffers.publish(0).unwrap();
    (buffers, memory)
}

/// Two fill it and whoever ends last publishes it, as workers do; a third one asks for it.
#[test]
fn parts_are_filled_at_once_and_leases_see_them() {
    check(3, || {
        let (buffers, _) = one_slot();
        buffers.allocate(0, Use::Weights, 8, 4).unwrap();
        let halves = [Bytes::default(), Bytes::default()];
        let done = Arc::new(Word::new(0));
        let fillers = [0, 1].map(|number: u8| {
            let (half, done) = (halves[usize::from(number)].clone(), done.clone());
            spawn(move || {
                let mut part = buffers.part(0, number.into()).unwrap();
                part.bytes().fill(number);
                half.write(7);
                part.finish().unwrap();
                if done.increment() == 1 {
                    buffers.publish(0).unwrap();
                }
            })
        });
        if let Ok(lease) = buffers.lease(0) {
            assert_eq!(lease[..], [0, 0, 0, 0, 1, 1, 1, 1]);
            assert!(halves.iter().all(|half| half.read() == 7));
        }
        for filler in fillers {
            filler.join().unwrap();
        }
        assert!(buffers.part(0, 0).is_err());
        assert!(buffers.lease(0).is_ok());
    });
}

#[test]
fn losers_of_a_race_for_a_resident_buffer_are_told_to_come_again() {
    check(3, || {
        let (buffers, memory) = resident();
        let try_to_write = move || match buffers.lock(0) {
            Ok(_exclusive) => memory.last().add_one(),
            Err(error) => assert_eq!(error.code, Code::Leased),
        };
        let others = [spawn(try_to_write), spawn(try_to_write)];
        match buffers.lease(0) {
            Ok(_lease) => drop(memory.last().read()),
            Err(error) => assert_eq!(error.code, Code::Leased),
        }
        for other in others {
            other.join().unwrap();
        }
        assert!(buffers.lock(0).is_ok());
    });
}

#[test]
fn a_buffer_goes_and_comes_back_while_others_ask_for_it() {
    check(3, || {
        let (buffers, memory) = resident();
        let reader = spawn(move || match buffers.lease(0) {
            Ok(_lease) => assert_eq!(memory.last().read(), 0),
            Err(error) => assert!(matches!(error.code, Code::Leased | Code::BadState)),
        });
        let writer = spawn(move || match buffers.lock(0) {
            Ok(_exclusive) => drop(memory.last().read()),
            Err(error) => assert!(matches!(error.code, Code::Leased | Code::BadState)),
        });
        match buffers.release(0) {
            Ok(()) => {
                assert_eq!(buffers.allocated_bytes(), 0);
                buffers.allocate(0, Use::Kv, 8, 8).unwrap();
                buffers.publish(0).unwrap();
            }
            Err(error) => assert_eq!(error.code, Code::Leased),
        }
        reader.join().unwrap();
        writer.join().unwrap();
        buffers.release(0).unwrap();
    });
}
