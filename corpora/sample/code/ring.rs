//! A fixed-size ring buffer.

use std::fmt;

pub struct Ring<T, const N: usize> {
    slots: [Option<T>; N],
    head: usize,
    len: usize,
}

impl<T, const N: usize> Ring<T, N> {
    pub fn new() -> Self {
        Self { slots: std::array::from_fn(|_| None), head: 0, len: 0 }
    }

    /// Appends a value; returns the oldest one when the ring is full.
    pub fn push(&mut self, value: T) -> Option<T> {
        let tail = (self.head + self.len) % N;
        let evicted = self.slots[tail].replace(value);
        if self.len == N {
            self.head = (self.head + 1) % N;
        } else {
            self.len += 1;
        }
        evicted
    }

    pub fn iter(&self) -> impl Iterator<Item = &T> {
        (0..self.len).filter_map(move |i| self.slots[(self.head + i) % N].as_ref())
    }
}

impl<T: fmt::Debug, const N: usize> fmt::Debug for Ring<T, N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_value_is_evicted() {
        let mut ring: Ring<u32, 2> = Ring::new();
        assert_eq!(ring.push(1), None);
        assert_eq!(ring.push(2), None);
        assert_eq!(ring.push(3), Some(1));
        assert_eq!(ring.iter().copied().collect::<Vec<_>>(), vec![2, 3]);
    }
}
