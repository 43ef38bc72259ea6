// Curves of a page as SVG: legend, smoothing, zoom and cursor; one view for all charts.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const place = document.getElementById("charts");
  if (!place) return;
  const namespace = document.createRange().createContextualFragment("<svg></svg>").firstChild.namespaceURI;
  const kept = `ogrpo ${location.pathname}`;
  const view = {x: "completions", smooth: 5, range: null, hidden: []};
  try { Object.assign(view, JSON.parse(sessionStorage.getItem(kept))); } catch { /* nothing is kept */ }
  const [height, left, right, top, bottom] = [220, 46, 12, 8, 22];
  const charts = [];

  function shape(name, attributes, parent) {
    const element = document.createElementNS(namespace, name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    parent?.append(element);
    return element;
  }
  function tag(name, properties, parent) {
    const element = Object.assign(document.createElement(name), properties);
    parent?.append(element);
    return element;
  }
  const compact = new Intl.NumberFormat("en", {notation: "compact", maximumSignificantDigits: 3});
  const text = (value) => value === 0 ? "0"
    : Math.abs(value) >= 1e4 ? compact.format(value)
    : Math.abs(value) < 1e-3 ? value.toExponential(1) : String(+value.toPrecision(4));

  function ticks(low, high, count) {
    const power = 10 ** Math.floor(Math.log10((high - low) / count));
    const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= (high - low) / count * 0.999);
    const places = [];
    for (let n = Math.ceil(low / step - 1e-9); n * step <= high + step * 1e-9; n++) places.push(n * step);
    return places;
  }
  // Running mean over `smooth` percent of the points, as wide as there are points at the ends.
  function smoothed(values) {
    const half = Math.floor(values.length * view.smooth / 200);
    if (!half) return values;
    const sums = [0];
    values.forEach((value, n) => sums.push(sums[n] + value));
    return values.map((_, n) => {
      const [a, b] = [Math.max(0, n - half), Math.min(values.length, n + half + 1)];
      return (sums[b] - sums[a]) / (b - a);
    });
  }
  function measured(curve) {
    const columns = data.columns;
    const bound = (end) => columns[`${curve.key}/${end}`] ?? [];
    const [x, y, low, high] = [columns[view.x], columns[curve.key] ?? [], bound("low"), bound("high")];
    const points = y.map((value, n) => ({x: x[n], y: value, low: low[n], high: high[n]}));
    return points.filter((point) => point.y != null && point.x != null);
  }
  function shown(chart) {
    const curves = chart.curves.map((c, n) => ({...c, n, points: measured(c)})).filter((c) => c.points.length);
    for (const curve of curves) {
      const means = smoothed(curve.points.map((p) => p.y));
      curve.raw = curve.points;
      curve.points = curve.points.map((p, n) => ({...p, y: means[n]}));
    }
    return curves;
  }
  const path = (points, x, y) => points.map((p, n) => `${n ? "L" : "M"}${x(p.x).toFixed(1)} ${y(p.y).toFixed(1)}`).join("");

  const least = (values) => values.reduce((a, b) => Math.min(a, b), Infinity);  // of more than a call takes
  const most = (values) => values.reduce((a, b) => Math.max(a, b), -Infinity);

  function draw(one) {
    const {chart, svg, legend} = one;
    const width = Math.max(200, svg.clientWidth || 460);
    const all = shown(chart), curves = all.filter((c) => !view.hidden.includes(c.label));
    svg.replaceChildren();
    svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    const everywhere = all.flatMap((c) => c.points.map((p) => p.x));
    let [from, to] = view.range ?? [least(everywhere), most(everywhere)];
    if (!(to > from)) to = from + 1;
    const inside = (points) => points.filter((p) => p.x >= from && p.x <= to);
    const values = curves.flatMap((c) => inside([...c.raw, ...c.points]).flatMap((p) => [p.y, p.low ?? p.y, p.high ?? p.y]));
    let [floor, ceiling] = [chart.low ?? least(values), chart.high ?? most(values)];
    if (!values.length && chart.high == null) [floor, ceiling] = [0, 1];
    if (!(ceiling > floor)) [floor, ceiling] = [chart.low ?? floor - 0.5, floor + (floor ? Math.abs(floor) : 1)];
    const pad = (ceiling - floor) * 0.05;
    if (chart.low == null) floor -= pad;
    if (chart.high == null) ceiling += pad;
    const x = (value) => left + (value - from) / (to - from) * (width - left - right);
    const y = (value) => top + (ceiling - value) / (ceiling - floor) * (height - top - bottom);
    Object.assign(one, {from, to, width, curves, x, y});
    for (const value of ticks(floor, ceiling, 4)) {
      shape("line", {class: "grid", x1: left, x2: width - right, y1: y(value), y2: y(value)}, svg);
      shape("text", {x: left - 5, y: y(value) + 4, "text-anchor": "end"}, svg).textContent = text(value);
    }
    for (const value of ticks(from, to, width < 420 ? 4 : 6)) {
      shape("text", {x: x(value), y: height - 6, "text-anchor": "middle"}, svg).textContent = text(value);
    }
    const clip = `clip${charts.indexOf(one)}`;
    shape("rect", {x: left, y: top, width: width - left - right, height: height - top - bottom},
      shape("clipPath", {id: clip}, svg));
    const layer = shape("g", {"clip-path": `url(#${clip})`}, svg);
    for (const curve of curves) {
      const group = shape("g", {class: `c${curve.n % 8}`, "data-label": curve.label}, layer);
      const band = curve.points.filter((p) => p.low != null && p.high != null);
      if (band.length > 1) {
        const edge = [...band.map((p) => ({x: p.x, y: p.high})), ...band.map((p) => ({x: p.x, y: p.low})).reverse()];
        shape("path", {class: "band", d: `${path(edge, x, y)}Z`}, group);
      }
      if (curve.points.length > 1 && curve.points[1].y !== curve.raw[1].y) shape("path", {class: "line raw", d: path(curve.raw, x, y)}, group);
      shape("path", {class: `line d${curve.n % 4}`, d: path(curve.points, x, y)}, group);
      if (curve.points.length < 40) for (const p of curve.points) shape("circle", {cx: x(p.x), cy: y(p.y), r: 2.6}, group);
    }
    one.overlay = shape("g", {}, svg);
    svg.setAttribute("aria-label", `${chart.title}. ${curves.map((c) => `${c.label}: ${text(c.points[0].y)} to ${text(c.points.at(-1).y)}`).join("; ")}.`
      + " Arrow keys read values, plus and minus zoom, 0 shows all.");
    if (legend.children.length !== all.length || [...legend.children].some((b, n) => b.dataset.label !== all[n].label)) {
      legend.replaceChildren(...all.map((curve) => {
        const button = tag("button", {type: "button"});
        button.dataset.label = curve.label;
        const swatch = shape("svg", {viewBox: "0 0 22 8", class: `c${curve.n % 8}`, "aria-hidden": true}, button);
        shape("path", {class: `line d${curve.n % 4}`, d: "M0 4L22 4"}, swatch);
        button.append(curve.label, tag("output", {}));
        button.onclick = () => {
          const at = view.hidden.indexOf(curve.label);
          if (at < 0) view.hidden.push(curve.label); else view.hidden.splice(at, 1);
          update();
        };
        return button;
      }));
    }
    all.forEach((curve, n) => legend.children[n].setAttribute("aria-pressed", String(curves.includes(curve))));
    point(one, null);
  }
  // Shows each curve's value at the point nearest to `at`, or its last where `at` is null.
  function point(one, at) {
    one.overlay.replaceChildren();
    one.at = at;
    const read = one.curves.map((curve) => at == null ? curve.points.at(-1)
      : curve.points.reduce((best, p) => Math.abs(p.x - at) < Math.abs(best.x - at) ? p : best));
    [...one.legend.children].forEach((button) => { button.querySelector("output").value = ""; });
    one.curves.forEach((curve, n) => {
      const button = [...one.legend.children].find((b) => b.dataset.label === curve.label);
      button.querySelector("output").value = text(read[n].y);
    });
    one.where.textContent = at == null || !read.length ? "" : ` at ${text(read[0].x)} ${names[view.x]}`;
    if (at == null) return;
    shape("line", {class: "cursor", x1: one.x(at), x2: one.x(at), y1: top, y2: height - bottom}, one.overlay);
    read.forEach((p, n) => shape("circle", {class: `c${one.curves[n].n % 8}`, cx: one.x(p.x), cy: one.y(p.y), r: 4}, one.overlay));
  }
  function listen(one) {
    const {svg} = one;
    const at = (event) => {
      const share = (event.clientX - svg.getBoundingClientRect().left - left) / (one.width - left - right);
      return one.from + Math.min(1, Math.max(0, share)) * (one.to - one.from);
    };
    let begin = null;
    svg.onpointerdown = (event) => { begin = at(event); svg.setPointerCapture(event.pointerId); };
    svg.onpointermove = (event) => {
      point(one, at(event));
      if (begin == null) return;
      const ends = [one.x(begin), one.x(at(event))];
      shape("rect", {class: "zoom", x: Math.min(...ends), y: top, width: Math.abs(ends[0] - ends[1]), height: height - top - bottom}, one.overlay);
    };
    svg.onpointerup = (event) => {
      const range = [begin, at(event)].sort((a, b) => a - b);
      if (begin != null && one.x(range[1]) - one.x(range[0]) > 8) { view.range = range; update(); }
      begin = null;
    };
    svg.onpointercancel = () => { begin = null; };
    svg.onpointerleave = () => { if (begin == null) point(one, null); };
    svg.ondblclick = () => { view.range = null; update(); };
    svg.onkeydown = (event) => {
      const points = (one.curves[0]?.points ?? []).filter((p) => p.x >= one.from && p.x <= one.to);
      const near = one.at == null ? -1 : points.findIndex((p) => p.x >= one.at);
      const width = one.to - one.from, middle = one.at ?? (one.from + one.to) / 2;
      if (event.key === "ArrowRight" && points.length) point(one, points[Math.min(points.length - 1, near + 1)].x);
      else if (event.key === "ArrowLeft" && points.length) point(one, points.at(near > 0 ? near - 1 : near === 0 ? 0 : -1).x);
      else if ("+-=".includes(event.key)) {
        const half = width * (event.key === "-" ? 1 : 0.25), x = middle;
        view.range = [x - half, x + half];
        update();
        point(one, x);
      } else if (event.key === "0" || event.key === "Escape") { view.range = null; update(); } else return;
      event.preventDefault();
      said.textContent = [...one.legend.children].map((b) => b.textContent + " " + b.querySelector("output").value).join("; ") + one.where.textContent;
    };
  }
  const names = {completions: "completions", step: "steps", updates: "updates", seconds: "seconds in the loop"};
  const bar = tag("div", {className: "bar"}, place);
  const axis = tag("select", {id: "axis"});
  tag("label", {textContent: "against "}, bar).append(axis);
  for (const [value, label] of Object.entries(names)) tag("option", {value, textContent: label}, axis);
  const slider = tag("input", {type: "range", id: "smoothing", min: 0, max: 40, step: 1});
  const percent = tag("output", {});
  tag("label", {textContent: "smoothing "}, bar).append(slider, percent);
  const reset = tag("button", {type: "button", id: "reset", textContent: "show all"}, bar);
  tag("p", {className: "hint", textContent: "Drag over a chart to zoom all of them, double-click to see all; a name in a legend turns its curve off and on. Keys: arrows, +, −, 0."}, place);
  const said = tag("div", {className: "hidden", ariaLive: "polite"}, place);
  const plots = tag("div", {className: "plots"}, place);
  axis.onchange = () => { view.x = axis.value; view.range = null; update(); };
  slider.oninput = () => { view.smooth = +slider.value; update(); };
  reset.onclick = () => { view.range = null; update(); };

  for (const chart of data.charts) {
    const figure = tag("figure", {className: "chart"}, plots);
    const caption = tag("figcaption", {textContent: chart.title}, figure);
    const where = tag("span", {className: "hint"}, caption);
    const svg = shape("svg", {tabindex: 0, role: "img"}, figure);
    const one = {chart, svg, where, legend: tag("div", {className: "legend"}, figure)};
    charts.push(one);
    listen(one);
  }
  function update() {
    axis.value = view.x;
    slider.value = view.smooth;
    percent.value = `${view.smooth} %`;
    reset.disabled = view.range == null;
    charts.forEach(draw);
    try { sessionStorage.setItem(kept, JSON.stringify(view)); } catch { /* a page without storage */ }
  }
  let width = 0;
  new ResizeObserver(() => { if (place.clientWidth !== width) { width = place.clientWidth; update(); } }).observe(place);
  update();
})();
