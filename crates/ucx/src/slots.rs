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
    places: Vec<Place<T>>,
    free: Vec<u32>,
}

struct Place<T> {
    generation: u32,
    used: bool,
    /// What the latest value has left, while it is not used: nothing is moved in or out.
    value: T,
}

impl<T> Default for Slots<T> {
    fn default() -> Self {
        Slots { places: Vec::new(), free: Vec::new() }
    }
}

impl<T: Default> Slots<T> {
    /// Opens a place. Returns its number, and what the value before has left there. `None` if no more numbers are left.
    #[inline]
    pub(crate) fn open(&mut self) -> Option<(u64, &mut T)> {
        if self.free.is_empty() {
            self.grow();
        }
        let number = self.free.pop()?;
        let place = self.places.get_mut(number as usize)?;
        place.used = true;
        Some((u64::from(place.generation) << PLACE_BITS | u64::from(number), &mut place.value))
    }

    #[cold]
    fn grow(&mut self) {
        if let Some(place) = u32::try_from(self.places.len()).ok().filter(|place| *place < 1 << PLACE_BITS) {
            self.places.push(Place { generation: 1, used: false, value: T::default() });
            self.free.push(place);
        }
    }
}

impl<T> Slots<T> {
    #[inline]
    fn place(&mut self, number: u64) -> Option<&mut Place<T>> {
        let place = self.places.get_mut((number & ((1 << PLACE_BITS) - 1)) as usize)?;
        (place.used && u64::from(place.generation) == number >> PLACE_BITS).then_some(place)
    }

    /// The value of a number.
    #[inline]
    pub(crate) fn get_mut(&mut self, number: u64) -> Option<&mut T> {
        self.place(number).map(|place| &mut place.value)
    }

    /// The number names nothing from now on. The value stays for the next one.
    #[inline]
    pub(crate) fn close(&mut self, number: u64) {
        if let Some(place) = self.place(number) {
            place.used = false;
            place.generation = if place.generation < (1 << GENERATION_BITS) - 1 { place.generation + 1 } else { 1 };
            self.free.push((number & ((1 << PLACE_BITS) - 1)) as u32);
        }
    }

    /// All values and their numbers.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, &T)> {
        let number = |(place, of): (usize, &Place<T>)| u64::from(of.generation) << PLACE_BITS | place as u64;
        let used = self.places.iter().enumerate().filter(|(_, place)| place.used);
        used.map(move |(place, of)| (number((place, of)), &of.value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn get<T: Copy + Default>(slots: &mut Slots<T>, number: u64) -> Option<T> {
        slots.get_mut(number).copied()
    }

    fn insert<T: Default>(slots: &mut Slots<T>, value: T) -> u64 {
        let (number, place) = slots.open().unwrap();
        *place = value;
        number
    }

    #[test]
    fn a_number_names_one_value() {
        let mut slots = Slots::default();
        let (one, two) = (insert(&mut slots, "one"), insert(&mut slots, "two"));
        assert!(one != 0 && one != two);
        slots.close(one);
        assert_eq!((get(&mut slots, one), get(&mut slots, two)), (None, Some("two")));
        slots.close(one);
        let three = insert(&mut slots, "three");
        let place = |number: u64| number & ((1 << PLACE_BITS) - 1);
        assert_eq!(place(three), place(one), "its place is used again");
        slots.close(one);
        assert_eq!((get(&mut slots, one), get(&mut slots, three)), (None, Some("three")));
        let mut all: Vec<_> = slots.iter().map(|(number, value)| (number, *value)).collect();
        all.sort_unstable();
        let mut expected = [(two, "two"), (three, "three")];
        expected.sort_unstable();
        assert_eq!(all, expected);
        assert_eq!((get(&mut slots, 0), get(&mut slots, u64::MAX)), (None, None));
    }

    #[test]
    fn generations_begin_again_within_their_bits() {
        let mut slots = Slots::default();
        let first = insert(&mut slots, 1);
        slots.places[0].generation = (1 << GENERATION_BITS) - 1;
        let last = slots.iter().map(|(number, _)| number).next().unwrap();
        assert!(last >> NUMBER_BITS == 0 && last != first);
        slots.close(first);
        slots.close(last);
        assert_eq!((get(&mut slots, last), insert(&mut slots, 2)), (None, first));
    }
}
