//! Values under numbers that the other side repeats: places that are used again, without a map and without allocation.
//!
//! Invariant: a number names one value. When its place is used again, the number is another one.

/// Bits of a number that are the place, and bits of the generation above them.
const PLACE_BITS: u32 = 24;
const GENERATION_BITS: u32 = 30;
/// Bits of a number: so many are left of a word for others to use.
pub(crate) const NUMBER_BITS: u32 = PLACE_BITS + GENERATION_BITS;

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
    /// Keeps a value, and returns its number; gives it back if there is no place.
    #[inline]
    pub(crate) fn insert(&mut self, value: T) -> Result<u64, T> {
        let place = match self.free.pop() {
            Some(place) => place,
            None => match self.grow() {
                Some(place) => place,
                None => return Err(value),
            },
        };
        let Some((generation, kept)) = self.places.get_mut(place as usize) else { return Err(value) };
        *kept = Some(value);
        Ok(u64::from(*generation) << PLACE_BITS | u64::from(place))
    }

    #[cold]
    fn grow(&mut self) -> Option<u32> {
        let place = u32::try_from(self.places.len()).ok().filter(|place| *place < 1 << PLACE_BITS)?;
        self.places.push((1, None));
        Some(place)
    }

    #[inline]
    fn place(&mut self, number: u64) -> Option<&mut (u32, Option<T>)> {
        let place = self.places.get_mut((number & ((1 << PLACE_BITS) - 1)) as usize)?;
        (u64::from(place.0) == number >> PLACE_BITS).then_some(place)
    }

    /// The value of a number.
    #[inline]
    pub(crate) fn get_mut(&mut self, number: u64) -> Option<&mut T> {
        self.place(number)?.1.as_mut()
    }

    /// Takes the value of a number, which names nothing from now on.
    #[inline]
    pub(crate) fn remove(&mut self, number: u64) -> Option<T> {
        let (generation, kept) = self.place(number)?;
        let value = kept.take()?;
        *generation = if *generation < (1 << GENERATION_BITS) - 1 { *generation + 1 } else { 1 };
        self.free.push((number & ((1 << PLACE_BITS) - 1)) as u32);
        Some(value)
    }

    /// All values and their numbers.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, &T)> {
        let number = |place: usize, generation: u32| u64::from(generation) << PLACE_BITS | place as u64;
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
        let (one, two) = (slots.insert("one").unwrap(), slots.insert("two").unwrap());
        assert!(one != 0 && one != two);
        assert_eq!((slots.remove(one), slots.remove(one), slots.get_mut(one)), (Some("one"), None, None));
        let three = slots.insert("three").unwrap();
        let place = |number: u64| number & ((1 << PLACE_BITS) - 1);
        assert_eq!(place(three), place(one), "its place is used again");
        assert_eq!((slots.remove(one), slots.get_mut(three).copied()), (None, Some("three")));
        let mut all: Vec<_> = slots.iter().map(|(number, value)| (number, *value)).collect();
        all.sort_unstable();
        let mut expected = [(two, "two"), (three, "three")];
        expected.sort_unstable();
        assert_eq!(all, expected);
        assert_eq!((slots.remove(0), slots.remove(u64::MAX)), (None, None));
    }

    #[test]
    fn generations_begin_again_within_their_bits() {
        let mut slots = Slots::default();
        let first = slots.insert(1).unwrap();
        slots.places[0].0 = (1 << GENERATION_BITS) - 1;
        let last = slots.iter().map(|(number, _)| number).next().unwrap();
        assert!(last >> NUMBER_BITS == 0 && last != first);
        assert_eq!((slots.remove(first), slots.remove(last)), (None, Some(1)));
        assert_eq!(slots.insert(2), Ok(first));
    }
}
