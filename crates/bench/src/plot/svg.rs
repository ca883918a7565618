//! One figure.

use super::Figure;
use plotters::coord::ranged1d::{DefaultFormatting, KeyPointHint, Ranged};
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;
use std::ops::Range;

const SIZE: (u32, u32) = (760, 420);
/// Colours that differ in brightness too.
const COLOURS: [RGBColor; 6] = [
    RGBColor(0x1f, 0x5a, 0x9c),
    RGBColor(0xc2, 0x4e, 0x1a),
    RGBColor(0x2e, 0x84, 0x4a),
    RGBColor(0x8a, 0x3d, 0x8f),
    RGBColor(0x9a, 0x7a, 0x10),
    RGBColor(0x44, 0x44, 0x44),
];
const MARK: RGBColor = RGBColor(0x88, 0x88, 0x88);

/// The end of an axis that holds all of these, with a little room.
fn end(values: impl Iterator<Item = f64>) -> f64 {
    let most = values.fold(0.0, f64::max);
    if most > 0.0 { most * 1.05 } else { 1.0 }
}

/// A number as an axis shows it.
fn label(value: &f64) -> String {
    let text = format!("{value:.3}");
    let text = text.trim_end_matches('0').trim_end_matches('.');
    text.to_owned()
}

pub(super) fn draw(figure: &Figure) -> Result<String, String> {
    let points = || figure.curves.iter().flat_map(|curve| &curve.points);
    if points().next().is_none() {
        return Err(format!("{}: there is nothing to draw", figure.title));
    }
    let marks = figure.marks.iter().copied();
    if !points().flat_map(|&(x, y)| [x, y]).chain(marks).all(f64::is_finite) {
        return Err(format!("{}: a number is not finite", figure.title));
    }
    let mut svg = String::new();
    paint(figure, &mut svg).map_err(|error| format!("{}: {error}", figure.title))?;
    Ok(svg)
}

/// The horizontal axis.
#[derive(Clone)]
struct Across {
    logarithmic: bool,
    range: Range<f64>,
    /// Where its labels are; without any, at round numbers.
    ticks: Vec<f64>,
}

impl Across {
    fn of(figure: &Figure) -> Across {
        let logarithmic = figure.is_logarithmic();
        let xs = figure.curves.iter().flat_map(|curve| &curve.points).map(|point| point.0);
        let (least, most) = xs.fold((f64::INFINITY, 0.0), |(a, b), x| (x.min(a), x.max(b)));
        let range = if logarithmic { least / 1.25..most * 1.25 } else { 0.0..end(std::iter::once(most)) };
        let mut ticks = figure.ticks.clone();
        ticks.sort_by(f64::total_cmp);
        ticks.dedup();
        let mut across = Across { logarithmic, range, ticks: Vec::new() };
        // Labels that would run into each other are worse than round numbers.
        let room = (across.place(across.range.end) - across.place(across.range.start)) / 20.0;
        if ticks.windows(2).all(|pair| matches!(pair, [a, b] if across.place(*b) - across.place(*a) >= room)) {
            across.ticks = ticks;
        }
        across
    }
    fn place(&self, x: f64) -> f64 {
        if self.logarithmic { x.log2() } else { x }
    }
    fn linear(&self) -> RangedCoordf64 {
        (self.place(self.range.start)..self.place(self.range.end)).into()
    }
}

impl Ranged for Across {
    type FormatOption = DefaultFormatting;
    type ValueType = f64;
    fn map(&self, value: &f64, limit: (i32, i32)) -> i32 {
        self.linear().map(&self.place(*value), limit)
    }
    fn key_points<Hint: KeyPointHint>(&self, hint: Hint) -> Vec<f64> {
        match (self.ticks.as_slice(), hint.weight().allow_light_points()) {
            ([], _) => RangedCoordf64::from(self.range.clone()).key_points(hint),
            (_, true) => Vec::new(),
            (ticks, false) => ticks.to_vec(),
        }
    }
    fn range(&self) -> Range<f64> {
        self.range.clone()
    }
}

fn paint(figure: &Figure, svg: &mut String) -> Result<(), Box<dyn std::error::Error>> {
    let points = || figure.curves.iter().flat_map(|curve| &curve.points);
    let across = Across::of(figure);
    let (right, top) = (across.range.end, end(points().map(|point| point.1)));
    // Where there is one curve and no mark, the axis has said what it is; otherwise the legend has room above the
    // curves.
    let legend = figure.curves.len() > 1 || !figure.marks.is_empty();
    let top = if legend { top * 1.3 } else { top };
    let area = SVGBackend::with_string(svg, SIZE).into_drawing_area();
    area.fill(&WHITE)?;
    let font = ("sans-serif", 13).into_font();
    let mut chart = ChartBuilder::on(&area)
        .caption(&figure.title, ("sans-serif", 16))
        .margin(12)
        .x_label_area_size(44)
        .y_label_area_size(64)
        .build_cartesian_2d(across.clone(), 0.0..top)?;
    chart
        .configure_mesh()
        .light_line_style(TRANSPARENT)
        .bold_line_style(BLACK.mix(0.12))
        .x_desc(&figure.x)
        .y_desc(&figure.y)
        .x_labels(9)
        .y_labels(7)
        .x_label_formatter(&label)
        .y_label_formatter(&label)
        .label_style(font.clone())
        .axis_desc_style(font.clone())
        .draw()?;
    let mut named = false;
    for &at in figure.marks.iter().filter(|&&at| at <= right) {
        let line = chart.draw_series(LineSeries::new([(at, 0.0), (at, top)], MARK.stroke_width(1)))?;
        if !named {
            line.label(&figure.marks_name).legend(|(x, y)| PathElement::new([(x, y), (x + 18, y)], MARK));
            named = true;
        }
    }
    for (curve, colour) in figure.curves.iter().zip(COLOURS.iter().cycle()) {
        let style = colour.stroke_width(2);
        chart
            .draw_series(LineSeries::new(curve.points.iter().copied(), style))?
            .label(&curve.name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], style));
        if curve.dots {
            chart.draw_series(curve.points.iter().map(|&point| Circle::new(point, 3, colour.filled())))?;
        }
    }
    if legend {
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::UpperRight)
            .background_style(WHITE.mix(0.85))
            .border_style(BLACK.mix(0.3))
            .label_font(font)
            .draw()?;
    }
    area.present()?;
    Ok(())
}
