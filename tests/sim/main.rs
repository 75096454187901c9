//! The manager among faults: the shipped state machine, policy, swap, codecs and runtime on ports
//! that fail, against a reference that knows every byte.
//!
//! `faults` goes through the port calls of one life on the system's own ports one by one. `life`
//! draws lives from seeds, on simulated ports; `crash` cuts the power in short ones:
//!
//! ```text
//! cargo test --test sim                     some hundreds of seeds
//! MZ_SEEDS=100000 cargo test --test sim seeds    more, from MZ_SEED on (default 0)
//! MZ_SEED=1234 MZ_SEEDS=1 cargo test --test sim seeds -- --show-output    one, told
//! MZ_CRASH_DEPTH=2 cargo test --test sim crash    two writes that are not as the rest
//! ```
//!
//! A seed that fails prints such a line. It fixes everything: the model, the device, the policy,
//! what compute and the system ask for, which faults there are, and which thread runs when.
//!
//! # Fault model
//!
//! What may happen, and what the manager must then do. A run that finds anything else is a bug in
//! the manager or in this list.
//!
//! *Model file.* Any read may fail (`Io`) or end early (`ShortRead`); the pass or restore fails
//! with that error, and succeeds when begun again once the file answers. It never lies: weights
//! carry no checksum, so wrong bytes from this file are beyond the manager.
//!
//! *Swap file.* Any read may fail; the copy counts as good and is read again next time. A read may
//! end early, come from another place, or have a bit changed; a write may be lost, be torn after
//! some page, go to another slot, and say that all is well; bits may rot at any time. Each of
//! these costs the copy that it hit, no other and nothing else: the restore says `Corrupt` and from
//! which token to compute again, and never gives wrong values. A write may fail with `Io` or
//! `NoSpace`, having done any part of its work; the chunk then leaves another way or stays. A
//! failed sync takes everything in the file with it, whatever later calls say: copies elsewhere
//! count, those that were only there are lost and said to be.
//!
//! *Shared memory.* An allocation may fail (`OutOfMemory`), by a limit or for no reason. Memory
//! never lies; what is in the RAM swap is never damaged.
//!
//! *Time.* Calls take any time; a device that is hot takes a hundred times as long. Time does not
//! go back. A thread that waits may be woken for no reason.
//!
//! *Threads.* At each port call any other thread may go on instead, for as long as it likes. A
//! worker may fail to start; then nothing is opened. A worker may die while it has nothing in hand:
//! whoever then lets workers rest goes on alone. One that dies with an action in hand takes the
//! process with it.
//!
//! *The process.* It may end at any port call, a write among them, of which any part may then have
//! arrived. The next process begins on the same files and finds the context of the last checkpoint
//! that was reported as durable, or of a later one that was under way or reported as failed, with
//! every byte that was on flash then. Where the swap file lied about a chunk, that chunk is lost
//! and said to be; so are chunks of a checkpoint that was reported as failed and is found all the
//! same. Where it lied about the head, an older checkpoint may be found, whose chunks may be lost,
//! or none. What was not in a checkpoint is gone.
//!
//! *Power.* With the process goes what was written since the last sync: each such write may be
//! absent, whole, or torn at the borders of pages, in any order. `crash` goes through such states
//! of short lives; a state that a failed or missing sync allows is no lie, so nothing is lost.
//!
//! *The system.* It may ask for memory at any moment, also while a restore or a pass runs; that
//! cancels them, and they are begun again.
//!
//! After all that the faults stop. Then everything that was not reported lost comes back, within a
//! number of actions that follows from the configuration, and everything can leave again.
#![cfg(feature = "host")]

mod crash;
mod device;
mod faults;
mod injector;
mod kept;
mod life;
mod random;
mod reference;
mod scheduler;
mod seeds;
mod swarm;
mod world;
