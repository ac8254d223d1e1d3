//! References that sequences continue, decoded once and kept in slots of their own.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

/// A reference, and the slot of the stream that takes it in.
pub(super) struct Context {
    pub codes: Arc<[u32]>,
    pub slot: usize,
    /// Frames of it that were launched.
    pub done: usize,
}

/// The kept ones, the one used last at the end.
pub(super) struct Contexts {
    kept: Vec<Rc<RefCell<Context>>>,
    free: Vec<usize>,
}

impl Contexts {
    /// In these slots of the arena.
    pub fn new(slots: impl Iterator<Item = usize>) -> Contexts {
        Contexts { kept: Vec::new(), free: slots.collect() }
    }

    /// The context of these codes; a new one has taken in nothing yet. `None` when sequences are using every slot.
    pub fn get(&mut self, codes: &Arc<[u32]>) -> Option<Rc<RefCell<Context>>> {
        let found = self.kept.iter().position(|context| context.borrow().codes == *codes);
        let context = match found {
            Some(at) => self.kept.remove(at),
            None => {
                let slot = self.free.pop().or_else(|| {
                    let unused = self.kept.iter().position(|context| Rc::strong_count(context) == 1)?;
                    Some(self.kept.remove(unused).borrow().slot)
                })?;
                Rc::new(RefCell::new(Context { codes: Arc::clone(codes), slot, done: 0 }))
            }
        };
        self.kept.push(Rc::clone(&context));
        Some(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn codes(seed: u32) -> Arc<[u32]> {
        [seed; 16].into()
    }

    #[test]
    fn a_reference_that_was_used_is_found_again_by_its_codes() {
        let mut contexts = Contexts::new(5..8);
        let first = contexts.get(&codes(1)).unwrap();
        first.borrow_mut().done = 2;
        contexts.get(&codes(2)).unwrap();
        assert!(Rc::ptr_eq(&first, &contexts.get(&codes(1)).unwrap()));
    }

    #[test]
    fn the_one_not_used_for_longest_goes_but_none_that_a_sequence_needs() {
        let mut contexts = Contexts::new(0..2);
        let a = contexts.get(&codes(1)).unwrap();
        let b = contexts.get(&codes(2)).unwrap().borrow().slot;
        assert_eq!(contexts.get(&codes(3)).unwrap().borrow().slot, b);
        let _c = contexts.get(&codes(3)).unwrap();
        assert!(contexts.get(&codes(4)).is_none());
        drop(a);
        assert!(contexts.get(&codes(4)).is_some());
    }
}
