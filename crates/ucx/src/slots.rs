//! Values under numbers that the other side repeats: places that are used again, without a map and without allocation.
//!
//! Invariant: a number names one value. When its place is used again, the number is another one.

/// Values by number. A number is (generation, place), and never 0.
pub(crate) struct Slots<T> {
    places: Vec<(u32, Option<T>)>,
    free: Vec<u32>,
}

impl<T> Default for Slots<T> {
    fn default() -> Self {
        Slots { places: Vec::new(), free: Vec::new() }
    }
}

impl<T> Slots<T> {
    /// Keeps a value, and returns its number.
    pub(crate) fn insert(&mut self, value: T) -> u64 {
        let place = self.free.pop().unwrap_or_else(|| {
            self.places.push((1, None));
            self.places.len() as u32 - 1
        });
        let Some((generation, kept)) = self.places.get_mut(place as usize) else { return 0 };
        *kept = Some(value);
        u64::from(*generation) << 32 | u64::from(place)
    }

    fn place(&mut self, number: u64) -> Option<&mut (u32, Option<T>)> {
        let place = self.places.get_mut(number as u32 as usize)?;
        (u64::from(place.0) == number >> 32).then_some(place)
    }

    /// The value of a number.
    pub(crate) fn get_mut(&mut self, number: u64) -> Option<&mut T> {
        self.place(number)?.1.as_mut()
    }

    /// Takes the value of a number, which names nothing from now on.
    pub(crate) fn remove(&mut self, number: u64) -> Option<T> {
        self.remove_if(number, |_| true)
    }

    /// As [`remove`](Self::remove), unless the value is not as it should be: then it stays.
    pub(crate) fn remove_if(&mut self, number: u64, as_it_should: impl FnOnce(&T) -> bool) -> Option<T> {
        let (generation, kept) = self.place(number)?;
        let value = kept.take_if(|value| as_it_should(value))?;
        *generation = generation.wrapping_add(1).max(1);
        self.free.push(number as u32);
        Some(value)
    }

    /// All values and their numbers.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, &T)> {
        let number = |place: usize, generation: u32| u64::from(generation) << 32 | place as u64;
        let places = self.places.iter().enumerate();
        places.filter_map(move |(place, (generation, kept))| Some((number(place, *generation), kept.as_ref()?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_names_one_value() {
        let mut slots = Slots::default();
        let (one, two) = (slots.insert("one"), slots.insert("two"));
        assert!(one != 0 && one != two);
        assert_eq!((slots.remove_if(one, |value| *value == "two"), slots.get_mut(one)), (None, Some(&mut "one")));
        assert_eq!((slots.remove(one), slots.remove(one), slots.get_mut(one)), (Some("one"), None, None));
        let three = slots.insert("three");
        assert_eq!(three as u32, one as u32, "its place is used again");
        assert_eq!((slots.remove(one), slots.get_mut(three).copied()), (None, Some("three")));
        let mut all: Vec<_> = slots.iter().map(|(number, value)| (number, *value)).collect();
        all.sort_unstable();
        let mut expected = [(two, "two"), (three, "three")];
        expected.sort_unstable();
        assert_eq!(all, expected);
        assert_eq!((slots.remove(0), slots.remove(u64::MAX)), (None, None));
    }
}
