//! Figures as SVG, and reports as one HTML page with its figures inside.
//!
//! Invariants: a page refers to nothing outside itself; text is escaped; the same numbers give the same bytes.

mod html;
mod svg;

pub use html::{Page, Table};

/// One curve.
#[derive(Debug, Clone, PartialEq)]
pub struct Curve {
    /// Its name, for the legend.
    pub name: String,
    /// Its points, from left to right.
    pub points: Vec<(f64, f64)>,
    /// Show each point: for measurements at chosen places, rather than a course in time.
    pub dots: bool,
}

/// Curves over common axes, which begin at zero, or at the least value if the horizontal one is logarithmic.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Figure {
    /// Above it.
    pub title: String,
    /// Below the horizontal axis.
    pub x: String,
    /// Label of the vertical axis.
    pub y: String,
    /// The curves.
    pub curves: Vec<Curve>,
    /// Vertical lines, at moments worth knowing.
    pub marks: Vec<f64>,
    /// What the vertical lines are, for the legend.
    pub marks_name: String,
    /// Places of the horizontal axis that get a label, for values that were chosen; without any, round numbers get one.
    /// If all are powers of two (and at least two of them), the axis is logarithmic.
    pub ticks: Vec<f64>,
}

impl Figure {
    /// Is the horizontal axis logarithmic, to the base of two?
    pub fn is_logarithmic(&self) -> bool {
        let power = |tick: &f64| *tick >= 1.0 && tick.log2().fract() == 0.0;
        let xs =
            self.curves.iter().flat_map(|curve| &curve.points).map(|point| point.0).chain(self.marks.iter().copied());
        self.ticks.len() > 1 && self.ticks.iter().all(power) && xs.into_iter().all(|x| x > 0.0)
    }
    /// Draws it. Fails on numbers that no axis can hold, and if there is nothing to draw.
    pub fn svg(&self) -> Result<String, String> {
        svg::draw(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figure() -> Figure {
        Figure {
            title: "a < b & c".into(),
            x: "clients".into(),
            y: "Mops/s".into(),
            curves: vec![Curve { name: "shard".into(), points: vec![(1.0, 0.5), (2.0, 1.0), (4.0, 1.5)], dots: true }],
            marks: vec![2.0],
            marks_name: "resize".into(),
            ticks: Vec::new(),
        }
    }

    #[test]
    fn a_figure_is_drawn_the_same_each_time_with_its_text_escaped() {
        let svg = figure().svg().unwrap();
        assert_eq!(svg, figure().svg().unwrap());
        assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"));
        assert!(svg.contains("a &lt; b &amp; c") && !svg.contains("a < b"));
        assert!(svg.contains("<polyline") && svg.matches("<circle").count() >= 3);
        assert!(svg.contains("clients") && svg.contains("Mops/s") && svg.contains("shard") && svg.contains("resize"));
    }

    /// Values that double are one step each, and each has its label.
    #[test]
    fn chosen_values_have_labels_and_powers_of_two_a_logarithmic_axis() {
        let points: Vec<_> = [1.0, 2.0, 4.0, 64.0].map(|x| (x, 1.0)).to_vec();
        let draw = |ticks: &[f64]| {
            let curves = vec![Curve { name: "one".into(), points: points.clone(), dots: true }];
            Figure { curves, ticks: ticks.to_vec(), marks: Vec::new(), ..figure() }.svg().unwrap()
        };
        let places = |svg: &str| -> Vec<f64> {
            svg.split("<circle cx=\"").skip(1).map(|rest| rest.split('"').next().unwrap().parse().unwrap()).collect()
        };
        let labels = |svg: &str| -> Vec<String> {
            svg.split("</text>").filter_map(|text| text.rsplit('>').next()).map(|text| text.trim().to_owned()).collect()
        };
        let doubling = draw(&[1.0, 2.0, 4.0, 64.0]);
        let at = places(&doubling);
        assert!((at[1] - at[0] - (at[2] - at[1])).abs() <= 1.0 && (at[3] - at[2] - 4.0 * (at[1] - at[0])).abs() <= 4.0);
        assert!(["1", "2", "4", "64"].iter().all(|value| labels(&doubling).contains(&(*value).to_owned())));
        let others = draw(&[3.0, 30.0, 64.0]);
        assert!(["3", "30", "64"].iter().all(|value| labels(&others).contains(&(*value).to_owned())));
        let at = places(&others);
        assert!((at[3] - at[2]) > 20.0 * (at[2] - at[1]), "{at:?}");
        // Too close together to be read: round numbers.
        assert_eq!(draw(&[1.0, 2.0, 3.0, 64.0]), draw(&[]));
    }

    #[test]
    fn what_cannot_be_drawn_is_said() {
        assert!(Figure { curves: Vec::new(), ..figure() }.svg().unwrap_err().contains("nothing to draw"));
        let mut endless = figure();
        endless.curves[0].points.push((f64::NAN, 1.0));
        assert!(endless.svg().unwrap_err().contains("not finite"));
        // A single point, and all zeros, are figures.
        let flat = Curve { name: "flat".into(), points: vec![(0.0, 0.0)], dots: true };
        assert!(Figure { curves: vec![flat], ..figure() }.svg().is_ok());
    }

    #[test]
    fn a_page_is_self_contained_and_escaped() {
        let mut page = Page::new("sweep <1>");
        page.paragraph("5 > 4");
        page.figure(&figure()).unwrap();
        page.table(&Table { head: vec!["n".into(), "ops/s".into()], rows: vec![vec!["<b>".into(), "2".into()]] });
        let html = page.finish();
        assert!(
            html.contains("sweep &lt;1&gt;") && html.contains("5 &gt; 4") && html.contains(">&lt;b&gt;</td><td>2</td>")
        );
        assert!(!html.contains("<script") && !html.contains("href=") && !html.contains("src="));
    }
}
