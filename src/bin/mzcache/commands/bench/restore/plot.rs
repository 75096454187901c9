//! Plots as SVG files.

use crate::failure::{Failure, Outcome};
use plotters::prelude::*;
use std::path::Path;

/// What is drawn.
pub struct Plot {
    title: &'static str,
    x: &'static str,
    y: &'static str,
    kind: Kind,
}

enum Kind {
    /// Named lines of (x, y).
    Lines(Vec<(String, Vec<(f64, f64)>)>),
    /// Named heights.
    Bars(Vec<(String, f64)>),
}

const SIZE: (u32, u32) = (900, 540);

impl Plot {
    pub fn lines(
        title: &'static str,
        x: &'static str,
        y: &'static str,
        lines: Vec<(String, Vec<(f64, f64)>)>,
    ) -> Plot {
        Plot { title, x, y, kind: Kind::Lines(lines) }
    }

    pub fn bars(title: &'static str, y: &'static str, bars: Vec<(String, f64)>) -> Plot {
        Plot { title, x: "", y, kind: Kind::Bars(bars) }
    }

    /// Writes it.
    pub fn write(&self, path: &Path) -> Outcome<()> {
        let drawn = match &self.kind {
            Kind::Lines(lines) => self.draw_lines(path, lines),
            Kind::Bars(bars) => self.draw_bars(path, bars),
        };
        drawn.map_err(|error| Failure::new(format!("drawing {}: {error}", path.display())))
    }

    fn draw_lines(&self, path: &Path, lines: &[(String, Vec<(f64, f64)>)]) -> Drawn {
        let points = || lines.iter().flat_map(|(_, points)| points);
        let low = points().map(|point| point.0).fold(f64::INFINITY, f64::min).min(0.0);
        let high = points().map(|point| point.0).fold(1.0, f64::max);
        let top = points().map(|point| point.1).fold(1.0, f64::max) * 1.1;
        let area = SVGBackend::new(path, SIZE).into_drawing_area();
        area.fill(&WHITE)?;
        let mut chart = ChartBuilder::on(&area)
            .caption(self.title, ("sans-serif", 22))
            .margin(12)
            .x_label_area_size(44)
            .y_label_area_size(64)
            .build_cartesian_2d(low..high, 0.0..top)?;
        chart.configure_mesh().x_desc(self.x).y_desc(self.y).draw()?;
        for (index, (name, points)) in lines.iter().enumerate() {
            let color = Palette99::pick(index).to_rgba();
            chart
                .draw_series(LineSeries::new(points.iter().copied(), color.stroke_width(2)))?
                .label(name)
                .legend(move |(x, y)| {
                    PathElement::new([(x, y), (x + 18, y)], color.stroke_width(2))
                });
            let marks = points.iter().map(|point| Circle::new(*point, 4, color.filled()));
            chart.draw_series(marks)?;
        }
        chart
            .configure_series_labels()
            .background_style(WHITE.mix(0.8))
            .border_style(BLACK)
            .draw()?;
        Ok(area.present()?)
    }

    fn draw_bars(&self, path: &Path, bars: &[(String, f64)]) -> Drawn {
        let top = bars.iter().map(|bar| bar.1).fold(1.0, f64::max) * 1.1;
        let area = SVGBackend::new(path, SIZE).into_drawing_area();
        area.fill(&WHITE)?;
        let mut chart = ChartBuilder::on(&area)
            .caption(self.title, ("sans-serif", 22))
            .margin(12)
            .x_label_area_size(44)
            .y_label_area_size(64)
            .build_cartesian_2d((0..bars.len()).into_segmented(), 0.0..top)?;
        let name = |place: &SegmentValue<usize>| match place {
            SegmentValue::CenterOf(index) => {
                bars.get(*index).map_or(String::new(), |bar| bar.0.clone())
            }
            _ => String::new(),
        };
        chart.configure_mesh().disable_x_mesh().x_label_formatter(&name).y_desc(self.y).draw()?;
        chart.draw_series(bars.iter().enumerate().map(|(index, (_, height))| {
            let corners =
                [(SegmentValue::Exact(index), 0.0), (SegmentValue::Exact(index + 1), *height)];
            let mut bar = Rectangle::new(corners, Palette99::pick(index).filled());
            bar.set_margin(0, 0, 8, 8);
            bar
        }))?;
        Ok(area.present()?)
    }
}

type Drawn = Result<(), Box<dyn std::error::Error>>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_and_bars_are_drawn_and_a_missing_folder_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let lines =
            vec![("one".to_owned(), vec![(0.0, 1.0), (50.0, 3.0)]), ("two".to_owned(), vec![])];
        let plots = [
            (Plot::lines("Lines", "x", "y", lines), "one"),
            (
                Plot::bars("Bars", "y", vec![("tall".to_owned(), 3.0), ("low".to_owned(), 1.0)]),
                "tall",
            ),
        ];
        for (plot, text) in plots {
            let path = folder.path().join("plot.svg");
            plot.write(&path).unwrap();
            let svg = std::fs::read_to_string(&path).unwrap();
            assert!(svg.starts_with("<svg") && svg.contains(text), "{svg}");
            assert!(plot.write(&folder.path().join("missing/plot.svg")).is_err());
        }
        Plot::bars("Nothing", "y", vec![]).write(&folder.path().join("none.svg")).unwrap();
    }
}
