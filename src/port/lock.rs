//! A mutex on one [`Word`], waiting through the [`Park`] port.
//!
//! The handle's lock is one: held for table updates only, never across I/O. Fair enough for a
//! handful of workers; poisoning does not exist because nothing panics under it.

use super::Park;
use crate::sync::{Word, constant};
use core::cell::UnsafeCell;
use core::marker::PhantomData;
use core::ops::{Deref, DerefMut};

const FREE: u32 = 0;
const HELD: u32 = 1;
const CONTENDED: u32 = 2;

/// A value that one thread at a time may touch.
pub struct Lock<T> {
    word: Word,
    park: &'static dyn Park,
    value: UnsafeCell<T>,
}

// SAFETY: `Guard` gives out the value to one thread at a time (the word's protocol below), so
// sharing the lock only ever moves access to T between threads.
unsafe impl<T: Send> Sync for Lock<T> {}

impl<T> Lock<T> {
    constant! {
        /// An unlocked value.
        pub fn new(value: T, park: &'static dyn Park) -> Self {
            Lock { word: Word::new(FREE), park, value: UnsafeCell::new(value) }
        }
    }

    /// Waits for the value.
    pub fn lock(&self) -> Guard<'_, T> {
        if !self.word.replace(FREE, HELD) {
            while self.word.swap(CONTENDED) != FREE {
                self.park.wait(&self.word, CONTENDED, None);
            }
        }
        Guard { lock: self, value: PhantomData }
    }
}

/// Access to a locked value until it is dropped.
pub struct Guard<'a, T> {
    lock: &'a Lock<T>,
    /// A shared guard shares the value, so it needs a T that may be shared; the lock does not.
    value: PhantomData<&'a mut T>,
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: a guard exists only while the word says held, and only one at a time.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T> DerefMut for Guard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as above, and `&mut self` makes this the guard's only borrow.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T> Drop for Guard<'_, T> {
    fn drop(&mut self) {
        if self.lock.word.swap(FREE) == CONTENDED {
            self.lock.park.wake_all(&self.lock.word);
        }
    }
}

#[cfg(test)]
mod tests;
