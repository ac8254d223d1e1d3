//! How many requests are served at once. Every admitted request has a slot in every stage, so that nobody who is slow can
//! keep the others waiting for one.

use super::SubmitError;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The places.
pub(super) struct Admissions {
    limit: usize,
    places: Arc<Semaphore>,
    /// How long a place was held lately, smoothed.
    held: Arc<Mutex<Duration>>,
}

/// A place, given back when dropped.
pub(super) struct Place {
    taken: Instant,
    held: Arc<Mutex<Duration>>,
    _permit: OwnedSemaphorePermit,
}

impl Admissions {
    pub fn new(limit: usize) -> Admissions {
        Admissions {
            limit,
            places: Arc::new(Semaphore::new(limit)),
            held: Arc::new(Mutex::new(Duration::from_secs(1))),
        }
    }

    /// A place now, or the advice when to come again: places become free at the rate at which they were given back lately.
    pub fn enter(&self) -> Result<Place, SubmitError> {
        match Arc::clone(&self.places).try_acquire_owned() {
            Ok(permit) => Ok(Place { taken: Instant::now(), held: Arc::clone(&self.held), _permit: permit }),
            Err(_) => {
                let held = *self.held.lock().unwrap_or_else(PoisonError::into_inner);
                Err(SubmitError::Full { limit: self.limit, retry_after: held / self.limit.max(1) as u32 })
            }
        }
    }

    /// Places in use.
    pub fn taken(&self) -> usize {
        self.limit - self.places.available_permits()
    }

    /// Resolves when nobody is left.
    pub async fn all_left(&self) {
        let all = u32::try_from(self.limit).unwrap_or(u32::MAX);
        // The semaphore is never closed.
        let _ = self.places.acquire_many(all).await;
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        *held = (*held * 7 + self.taken.elapsed()) / 8;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_house_says_so_and_when_to_come_again() {
        let admissions = Admissions::new(2);
        let (first, _second) = (admissions.enter().unwrap(), admissions.enter().unwrap());
        match admissions.enter() {
            Err(SubmitError::Full { limit: 2, retry_after }) => assert!(retry_after <= Duration::from_secs(1)),
            Err(other) => panic!("{other}"),
            Ok(_) => panic!("a third place"),
        }
        drop(first);
        assert_eq!(admissions.taken(), 1);
        assert!(admissions.enter().is_ok());
    }
}
