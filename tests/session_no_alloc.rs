//! Nothing allocates between open and the last token of an answer, evictions and restores included.

#![cfg(feature = "infer")]

mod models;
mod refusing;

use models::{fixture, open, oracle};
use mzcache::infer::sample;
use mzcache::units::{ByteCount, CodecId};
use refusing::{armed, sees_one_allocation};

/// One test, since the allocator is the whole process's.
#[test]
fn a_context_evictions_and_answers_allocate_nothing() {
    sees_one_allocation();
    let oracle = oracle("qwen3.json");
    let (context, question) = oracle.prompt.split_at(oracle.prompt.len() - 8);
    for threads in [1, 2] {
        let mut session =
            open(&format!("no-alloc-{threads}"), &fixture("qwen3.gguf"), CodecId::Raw, threads);
        let mut tokens = [0u32; 12];
        let calls = armed(|| {
            session.append(context, 0).unwrap();
            let kept = session.tokens();
            let total = session.runtime().stats().tally.total_bytes();
            for quarter in [1, 4] {
                session.runtime().evict(ByteCount::new(total / 4 * quarter), None).unwrap();
                session.truncate(kept).unwrap();
                let mut places = tokens.iter_mut();
                session
                    .generate(question, 12, |logits| {
                        let token = u32::try_from(sample::arg_max(logits)?).ok()?;
                        *places.next()? = token;
                        Some(token)
                    })
                    .unwrap();
            }
        });
        assert_eq!(calls, 0);
        assert_eq!(tokens[..], oracle.greedy);
    }
}
