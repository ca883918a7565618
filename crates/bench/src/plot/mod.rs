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

/// Curves over common axes that begin at zero.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Figure {
    /// Above it.
    pub title: String,
    /// Below the horizontal axis.
    pub x: String,
    /// Beside the vertical axis.
    pub y: String,
    /// The curves.
    pub curves: Vec<Curve>,
    /// Vertical lines, at moments worth knowing.
    pub marks: Vec<f64>,
    /// What the vertical lines are, for the legend.
    pub marks_name: String,
}

impl Figure {
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
