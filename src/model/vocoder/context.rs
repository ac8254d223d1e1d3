//! References that sequences continue, decoded once and kept.

use super::{Stream, Vocoder};
use candle_core::Result;
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

/// The contexts of one thread, the one used last at the end. Sequences with the same reference share the work, even
/// while it is under way.
pub struct Contexts {
    kept: Vec<Rc<RefCell<Context>>>,
    /// Memory for contexts that no sequence uses; those in use do not count.
    budget: usize,
}

/// A reference and the state of a stream that has taken in its first frames.
pub struct Context {
    codes: Arc<[u32]>,
    stream: Stream,
}

impl Contexts {
    /// Keeps at most so many bytes.
    pub fn new(budget: usize) -> Contexts {
        Contexts { kept: Vec::new(), budget }
    }

    /// The context of these codes. A new one has taken in nothing yet.
    ///
    /// # Errors
    /// When the device has no room.
    pub fn get(&mut self, net: &Vocoder, codes: &Arc<[u32]>) -> Result<Rc<RefCell<Context>>> {
        let found = self.kept.iter().position(|context| context.borrow().codes == *codes);
        let context = match found {
            Some(at) => self.kept.remove(at),
            None => Rc::new(RefCell::new(Context::alone(net, Arc::clone(codes))?)),
        };
        self.kept.push(Rc::clone(&context));
        let mut room = self.budget;
        let fitting = self.kept.iter().rev().take_while(|context| match room.checked_sub(context.borrow().bytes()) {
            Some(left) => {
                room = left;
                true
            }
            None => false,
        });
        let fitting = fitting.count();
        self.kept.drain(..self.kept.len() - fitting);
        Ok(context)
    }
}

impl Context {
    /// A context that is not shared. It has taken in nothing yet.
    ///
    /// # Errors
    /// When the device has no room.
    pub fn alone(net: &Vocoder, codes: Arc<[u32]>) -> Result<Context> {
        Ok(Context { codes, stream: net.stream()? })
    }

    /// Frames of the reference.
    pub fn frames(&self, net: &Vocoder) -> usize {
        self.codes.len() / net.config().num_quantizers
    }

    /// Takes in frames until there are `frames`, if it has not.
    ///
    /// # Errors
    /// What the device says; the context must then be dropped.
    pub fn reach(&mut self, net: &Vocoder, frames: usize) -> Result<()> {
        let (groups, done) = (net.config().num_quantizers, self.stream.frames() as usize);
        let frames = frames.min(self.frames(net));
        if done >= frames {
            return Ok(());
        }
        let more = self.frames(net) - frames;
        net.absorb(&mut self.stream, &self.codes[done * groups..frames * groups], more)
    }

    /// A stream that continues from here.
    ///
    /// # Errors
    /// When the device has no room.
    pub fn fork(&self) -> Result<Stream> {
        self.stream.fork()
    }

    fn bytes(&self) -> usize {
        self.stream.bytes() + size_of_val(&*self.codes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Checkpoint;
    use candle_core::Device;
    use std::path::Path;

    fn net() -> Vocoder {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/qwen3_tts/base");
        Vocoder::load(&Checkpoint::open(&folder).unwrap(), &Device::Cpu).unwrap()
    }

    fn reference(seed: u32) -> Arc<[u32]> {
        (0..20 * 8).map(|i| (i * 37 + seed) % 128).collect()
    }

    #[test]
    fn a_reference_that_was_used_is_found_again_by_its_codes() {
        let (net, mut contexts) = (net(), Contexts::new(1 << 30));
        let first = contexts.get(&net, &reference(1)).unwrap();
        first.borrow_mut().reach(&net, 20).unwrap();
        contexts.get(&net, &reference(2)).unwrap();
        let again = contexts.get(&net, &reference(1)).unwrap();
        assert!(Rc::ptr_eq(&first, &again));
        assert_eq!(again.borrow().stream.frames(), 20);
    }

    #[test]
    fn the_one_not_used_for_longest_goes_when_there_is_no_room() {
        let net = net();
        let bytes = Context { codes: reference(1), stream: net.stream().unwrap() }.bytes();
        let mut contexts = Contexts::new(2 * bytes);
        let [a, b] = [1, 2].map(|seed| contexts.get(&net, &reference(seed)).unwrap());
        contexts.get(&net, &reference(1)).unwrap();
        contexts.get(&net, &reference(3)).unwrap();
        assert!(Rc::ptr_eq(&a, &contexts.get(&net, &reference(1)).unwrap()));
        assert!(!Rc::ptr_eq(&b, &contexts.get(&net, &reference(2)).unwrap()));
        assert_eq!(contexts.kept.len(), 2);
    }

    #[test]
    fn a_context_that_does_not_fit_is_used_and_not_kept() {
        let (net, mut contexts) = (net(), Contexts::new(1000));
        let context = contexts.get(&net, &reference(1)).unwrap();
        assert!(contexts.kept.is_empty());
        context.borrow_mut().reach(&net, 20).unwrap();
        assert_eq!(context.borrow().fork().unwrap().frames(), 20);
    }
}
