//! Whose turn it is at something that serves one after the other: tenants in turn, however many each of them has
//! waiting, and what is urgent first.

use std::collections::{BTreeMap, VecDeque};

/// How much waiting is allowed.
#[derive(Clone, Copy, Debug)]
pub struct TurnLimits {
    /// Of all tenants.
    pub all: usize,
    /// Of one tenant.
    pub each: usize,
}

/// Those who wait in one line: `K` names a tenant, `T` is what waits.
#[derive(Debug)]
pub struct Line<K, T> {
    limits: TurnLimits,
    waiting: BTreeMap<K, VecDeque<T>>,
    /// Who was served last.
    last: Option<K>,
    length: usize,
}

impl<K: Ord + Copy, T> Line<K, T> {
    /// No task waits.
    pub fn new(limits: TurnLimits) -> Line<K, T> {
        Line { limits, waiting: BTreeMap::new(), last: None, length: 0 }
    }

    /// Lets a tenant wait.
    ///
    /// # Errors
    /// What was to wait, where too much does already.
    pub fn push(&mut self, tenant: K, item: T) -> Result<(), T> {
        let own = self.waiting.get(&tenant).map_or(0, VecDeque::len);
        if self.length >= self.limits.all || own >= self.limits.each {
            return Err(item);
        }
        self.waiting.entry(tenant).or_default().push_back(item);
        self.length += 1;
        Ok(())
    }

    /// Who is next: the tenant after the one that was served last, in order of names.
    pub fn pop(&mut self) -> Option<T> {
        let behind = self.last.and_then(|last| {
            let behind = (std::ops::Bound::Excluded(last), std::ops::Bound::Unbounded);
            self.waiting.range(behind).next().map(|(tenant, _)| *tenant)
        });
        let tenant = behind.or_else(|| self.waiting.keys().next().copied())?;
        let own = self.waiting.get_mut(&tenant)?;
        let item = own.pop_front();
        if own.is_empty() {
            self.waiting.remove(&tenant);
        }
        self.last = Some(tenant);
        self.length -= usize::from(item.is_some());
        item
    }

    /// Drops those who wait no more.
    pub fn retain(&mut self, waits: impl Fn(&T) -> bool) {
        self.waiting.values_mut().for_each(|own| own.retain(&waits));
        self.waiting.retain(|_, own| !own.is_empty());
        self.length = self.waiting.values().map(VecDeque::len).sum();
    }

    /// How many wait.
    pub fn len(&self) -> usize {
        self.length
    }

    /// Whether none waits.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LIMITS: TurnLimits = TurnLimits { all: 20, each: 8 };

    #[test]
    fn a_tenant_with_one_is_served_second_however_many_another_has() {
        let mut line = Line::new(LIMITS);
        (0..8).for_each(|number| line.push('a', ('a', number)).unwrap());
        assert_eq!(line.push('a', ('a', 8)), Err(('a', 8)), "it has its limit");
        assert_eq!(line.pop(), Some(('a', 0)));
        line.push('b', ('b', 0)).unwrap();
        assert_eq!([line.pop(), line.pop(), line.pop()], [Some(('b', 0)), Some(('a', 1)), Some(('a', 2))]);
        line.retain(|(_, number)| *number == 7);
        assert_eq!((line.len(), line.pop(), line.pop()), (1, Some(('a', 7)), None));
    }

    proptest! {
        /// Between two turns of a tenant no other has more than one, and all that came in comes out in its order.
        #[test]
        fn tenants_take_turns(moves in proptest::collection::vec(proptest::option::of(0..4u8), 1..200)) {
            let mut line = Line::new(LIMITS);
            let (mut given, mut got, mut served) = ([0; 4], [0; 4], Vec::<u8>::new());
            for (step, who) in moves.into_iter().enumerate() {
                match who {
                    Some(who) => if line.push(who, (who, given[who as usize], step)).is_ok() { given[who as usize] += 1 },
                    None => if let Some((who, number, since)) = line.pop() {
                        prop_assert_eq!(number, got[who as usize]);
                        got[who as usize] += 1;
                        let _ = since;
                        served.push(who);
                    },
                }
                let waiting: i32 = (0..4).map(|who| given[who] - got[who]).sum();
                prop_assert_eq!(line.len() as i32, waiting);
                prop_assert!(line.len() <= LIMITS.all);
            }
            while let Some((who, number, _)) = line.pop() {
                prop_assert_eq!(number, got[who as usize]);
                got[who as usize] += 1;
            }
            prop_assert_eq!(given, got);
        }
    }
}
