//! The functions of a model that the library itself computes.
//!
//! As in the module above, nothing here but pointers made into values and results into codes. In
//! archives with the feature `infer`.

use super::door::Visit;
use super::raw::{self, Place, Tables};
use super::session::{self, Opened, Turn};
use super::tables::{MzChoose, MzHeard, MzModel, MzModelConfig, MzModelInfo};
use super::types::{MZ_OK, MzError, MzHandle};
use super::{answer, outside};
use crate::error::{Code, Error, Result};
use core::ffi::{c_int, c_void};

/// How much memory mz_model_open needs for this configuration, at any alignment. Reads the head of
/// the model file. In archives with the feature infer, as all functions of models.
// SAFETY: the caller keeps the promises that the head of mzcache.h asks for.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mz_model_required_bytes(
    config: *const MzModelConfig,
    bytes: *mut usize,
    error: *mut MzError,
) -> c_int {
    let body = || {
        // SAFETY: the caller's promise.
        let place = unsafe { Place::new(bytes, "bytes") }?;
        // SAFETY: the caller's promise.
        place.set(unsafe { session::with(config, session::required_bytes) }?);
        Ok(())
    };
    // SAFETY: the caller's promise.
    unsafe { outside(error, body) }
}

/// Opens a model file and all it needs in the caller's memory, which belongs to the model until
/// mz_model_close has succeeded: files, worker threads, compute threads, a memory manager. The
/// weights stay on storage until they are first needed.
// SAFETY: the caller keeps the promises that the head of mzcache.h asks for.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mz_model_open(
    config: *const MzModelConfig,
    memory: *mut c_void,
    bytes: usize,
    model: *mut *mut MzModel,
    error: *mut MzError,
) -> c_int {
    let body = || {
        // SAFETY: the caller's promise.
        let place = unsafe { Place::new(model, "model") }?;
        let places = [raw::extent(model, 1), raw::extent(error, 1), raw::extent(config, 1)];
        raw::check_apart(memory.cast(), bytes, &places)?;
        let open = |wanted: &session::Wanted<'_>| {
            // SAFETY: the caller's promise.
            unsafe { session::open(wanted, memory.cast(), bytes) }
        };
        // SAFETY: the caller's promise.
        place.set(unsafe { session::with(config, open) }?);
        Ok(())
    };
    // SAFETY: the caller's promise.
    unsafe { outside(error, body) }
}

/// Closes a model, its handle, its threads and its files, and gives the memory back to the caller.
/// The context is gone. MZ_ERR_BAD_STATE while other calls are running in the model or its handle,
/// or when it is not open; MZ_ERR_LEASED while leases of the handle are out.
// SAFETY: the caller keeps the promises that the head of mzcache.h asks for.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mz_model_close(model: *mut MzModel) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { session::close(model) }.map_or_else(answer::result, |()| MZ_OK)
}

/// The model's memory manager: mz_evict, mz_stats_get, mz_restore, mz_lost, mz_last_error and so on
/// work on it from any thread, also while another one computes. mz_close refuses it.
// SAFETY: the caller keeps the promises that the head of mzcache.h asks for.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mz_model_handle(model: *mut MzModel, handle: *mut *mut MzHandle) -> c_int {
    let body = |visit: &Visit<Opened>| {
        // SAFETY: the caller's promise.
        unsafe { Place::new(handle, "handle") }?.set(visit.handle);
        Ok(())
    };
    // SAFETY: the caller's promise.
    unsafe { inside(model, body) }
}

/// What the model is.
// SAFETY: the caller keeps the promises that the head of mzcache.h asks for.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mz_model_info_get(model: *mut MzModel, info: *mut MzModelInfo) -> c_int {
    let body = |visit: &Visit<Opened>| {
        // SAFETY: the caller's promise.
        unsafe { Tables::one(info) }?.write(0, &visit.info);
        Ok(())
    };
    // SAFETY: the caller's promise.
    unsafe { inside(model, body) }
}

/// Appends tokens to the context and generates up to tokens_max more, each the most likely one, and
/// tells them to heard; with tokens_max 0 it only reads the tokens. Whatever was evicted is
/// restored meanwhile: layers compute as soon as they are there. All generated tokens but the last
/// one are in the context afterwards. *generated, if it is not NULL, is how many were taken.
///
/// After a failure the context is as it was before the token that failed. MZ_ERR_CANCELLED: an
/// eviction came first; mz_model_tokens says where to go on. MZ_ERR_BAD_STATE: another thread
/// computes on this model.
// SAFETY: the caller keeps the promises that the head of mzcache.h asks for.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mz_restore_generate(
    model: *mut MzModel,
    tokens: *const u32,
    count: usize,
    tokens_max: usize,
    heard: MzHeard,
    context: *mut c_void,
    generated: *mut usize,
) -> c_int {
    let body = |visit: &Visit<Opened>| {
        let heard = match (heard, tokens_max) {
            (None, 1..) => return Err(Error::new(Code::InvalidArgument, "heard")),
            (heard, _) => heard,
        };
        // SAFETY: the caller's promise.
        let (mut turn, tokens, place) = unsafe { begin(visit, tokens, count, generated) }?;
        let mut taken = 0;
        let result = turn.generate_greedy(tokens, tokens_max, |best| {
            let token = best?;
            // SAFETY: the callback takes the context that came with it.
            let stops = heard.is_none_or(|heard| unsafe { heard(context, token) } != 0);
            taken += usize::from(!stops);
            (!stops).then_some(token)
        });
        if let Some(place) = place {
            place.set(taken);
        }
        result.map(|_| ())
    };
    // SAFETY: the caller's promise.
    unsafe { inside(model, body) }
}

/// As mz_restore_generate, but choose picks each token from the logits.
// SAFETY: the caller keeps the promises that the head of mzcache.h asks for.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mz_restore_sample(
    model: *mut MzModel,
    tokens: *const u32,
    count: usize,
    tokens_max: usize,
    choose: MzChoose,
    context: *mut c_void,
    generated: *mut usize,
) -> c_int {
    let body = |visit: &Visit<Opened>| {
        let choose = choose.ok_or(Error::new(Code::InvalidArgument, "choose"))?;
        // SAFETY: the caller's promise.
        let (mut turn, tokens, place) = unsafe { begin(visit, tokens, count, generated) }?;
        let mut taken = 0;
        let mut refused = None;
        let vocabulary = turn.opened().info.vocabulary;
        let result = turn.generate(tokens, tokens_max, |logits| {
            // SAFETY: the callback takes the context that came with it; the logits live during it.
            let chosen = unsafe { choose(context, logits.as_ptr(), vocabulary) };
            if chosen < 0 {
                return None;
            }
            let token = u32::try_from(chosen).ok().filter(|token| *token < vocabulary);
            if token.is_none() {
                refused = Some(Error::new(Code::InvalidArgument, "chosen token").with(chosen));
            }
            taken += usize::from(token.is_some());
            token
        });
        if let Some(place) = place {
            place.set(taken);
        }
        result.and(refused.map_or(Ok(()), Err))
    };
    // SAFETY: the caller's promise.
    unsafe { inside(model, body) }
}

/// Tokens in the model's context, which *tokens becomes.
// SAFETY: the caller keeps the promises that the head of mzcache.h asks for.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mz_model_tokens(model: *mut MzModel, tokens: *mut u32) -> c_int {
    let body = |visit: &Visit<Opened>| {
        // SAFETY: the caller's promise.
        let place = unsafe { Place::new(tokens, "tokens") }?;
        place.set(Turn::take(visit)?.tokens().get());
        Ok(())
    };
    // SAFETY: the caller's promise.
    unsafe { inside(model, body) }
}

type Begun<'v, 'a> = (Turn<'v>, &'a [u32], Option<Place<usize>>);

/// Takes the turn to compute; the tokens, and where to say how many were generated.
///
/// # Safety
///
/// The pointers are as their types say, and nobody changes the tokens during the call.
unsafe fn begin<'v, 'a>(
    visit: &'v Visit<Opened>,
    tokens: *const u32,
    count: usize,
    generated: *mut usize,
) -> Result<Begun<'v, 'a>> {
    let place = match generated.is_null() {
        true => None,
        // SAFETY: the caller's promise.
        false => Some(unsafe { Place::new(generated, "generated") }?),
    };
    // SAFETY: the caller's promise.
    let tokens = unsafe { raw::slice(tokens, count, "tokens") }?;
    let vocabulary = visit.info.vocabulary;
    if let Some(token) = tokens.iter().find(|token| **token >= vocabulary) {
        return Err(Error::new(Code::InvalidArgument, "tokens").with(*token));
    }
    if let Some(place) = &place {
        place.set(0);
    }
    Ok((Turn::take(visit)?, tokens, place))
}

/// Runs a call inside a model, remembers its failure.
///
/// # Safety
///
/// As for [`Visit::enter`].
unsafe fn inside(model: *const MzModel, body: impl FnOnce(&Visit<Opened>) -> Result<()>) -> c_int {
    // SAFETY: the caller's promise.
    let visit = match unsafe { Visit::enter(model.cast::<Opened>()) } {
        Ok(visit) => visit,
        Err(error) => return answer::result(error),
    };
    body(&visit).map_or_else(
        |error| {
            visit.note(error);
            answer::result(error)
        },
        |()| MZ_OK,
    )
}
