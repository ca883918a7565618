//! One figure.

use super::Figure;
use plotters::prelude::*;

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

fn paint(figure: &Figure, svg: &mut String) -> Result<(), Box<dyn std::error::Error>> {
    let points = || figure.curves.iter().flat_map(|curve| &curve.points);
    let (right, top) = (end(points().map(|point| point.0)), end(points().map(|point| point.1)));
    // Where there is one curve and no mark, the axis has said what it is; otherwise the legend has room above the curves.
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
        .build_cartesian_2d(0.0..right, 0.0..top)?;
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
