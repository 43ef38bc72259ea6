// Viewer of sampled completions, token by token: colour, values, search, worst first.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const place = document.getElementById("tokens");
  if (!place || !data.tokens.length) return;
  const PAGE = 8;
  const tag = (name, properties, parent) => {
    const element = Object.assign(document.createElement(name), properties);
    parent?.append(element);
    return element;
  };
  const advantage = (one, t) => Array.isArray(one.advantage) ? one.advantage[t] : one.advantage;
  const number = (value, digits = 3) => value == null ? "none" : value.toFixed(digits).replace("-", "−");
  for (const one of data.tokens) {
    one.ratios = one.pi.map((pi, t) => pi == null || one.mu[t] == null ? 0 : pi - one.mu[t]);
    one.removed = new Set(one.removed);
    one.farthest = Math.max(0, ...one.ratios.map(Math.abs));
    one.weight = Math.max(0, ...one.tokens.map((_, t) => Math.abs(advantage(one, t) ?? 0)));
    one.text = one.tokens.join("");
  }
  const orders = {
    "largest |log ratio|": (a, b) => b.farthest - a.farthest,
    "lowest reward": (a, b) => a.reward - b.reward || b.farthest - a.farthest,
    "most tokens clipped": (a, b) => b.removed.size - a.removed.size || b.farthest - a.farthest,
    "largest |advantage|": (a, b) => b.weight - a.weight,
    "least likely under π": (a, b) => Math.min(...a.pi) - Math.min(...b.pi),
    "newest": (a, b) => b.step - a.step,
  };
  // Value of a token, and the value that has the full colour.
  const colours = {
    "ratio π/μ (log)": [(one, t) => one.ratios[t], 0.7],
    "advantage": [advantage, 2],
    "log π (current)": [(one, t) => one.pi[t], 5],
    "log μ (behaviour)": [(one, t) => one.mu[t], 5],
    "clipped": [(one, t) => (one.removed.has(t) ? -1 : 0), 1],
  };
  const bar = tag("div", {className: "bar"}, place);
  function choice(label, id, words) {
    const select = tag("select", {id, onchange: draw}, tag("label", {textContent: `${label} `}, bar));
    for (const [value, text] of words) tag("option", {value, textContent: text}, select);
    return select;
  }
  const search = tag("input", {type: "search", id: "search", placeholder: "text of prompt or completion", oninput: draw}, tag("label", {textContent: "search "}, bar));
  const order = choice("order", "order", Object.keys(orders).map((name) => [name, name]));
  const colour = choice("colour", "colour", Object.keys(colours).map((name) => [name, name]));
  const steps = [...new Set(data.tokens.map((one) => one.step))];
  const step = choice("step", "token-step", [["", "all"], ...steps.map((n) => [n, n])]);
  const scale = tag("p", {className: "hint"}, place);
  const count = tag("p", {className: "hint", id: "token-count", ariaLive: "polite"}, place);
  const list = tag("div", {}, place);
  const more = tag("button", {type: "button", textContent: "show more", onclick: () => { most += PAGE; draw(false); }}, place);
  const detail = tag("p", {className: "detail", id: "token-detail", ariaLive: "polite"}, place);
  const idle = "Hover a token, click it to keep its values here, or go through tokens with Tab and the arrow keys.";
  let most = PAGE, pinned = null;

  const background = (share) => share === 0 ? ""
    : `rgba(var(${share < 0 ? "--low" : "--high"}), ${(0.5 * Math.min(1, Math.abs(share))).toFixed(2)})`;
  function tell(one, t) {
    const gap = one.ratios[t], sign = (value) => number(value).replace(/^(?=\d)/, "+");
    detail.textContent = `“${one.tokens[t].replaceAll("\n", "⏎")}”, token ${t + 1} of ${one.tokens.length}: ratio ${number(Math.exp(gap), 4)} (log ${sign(gap)}),`
      + ` log π ${number(one.pi[t])}, log μ ${number(one.mu[t])}, advantage ${advantage(one, t) == null ? "none" : sign(advantage(one, t))}`
      + `${one.removed.has(t) ? ", clipped: the method removed its gradient" : ", not clipped"}.`;
  }
  function pin(span, one, t) {
    pinned?.span.classList.remove("here");
    pinned = {span, one, t};
    span.classList.add("here");
    tell(one, t);
  }
  function tokens(one, words) {
    const box = tag("div", {className: "tokens", tabIndex: 0, role: "group", ariaLabel: "tokens of the completion; arrow keys go through them"});
    const [value, full] = colours[colour.value];
    let begin = 0;
    const matches = [];
    if (words) for (let at = one.text.toLowerCase().indexOf(words); at >= 0; at = one.text.toLowerCase().indexOf(words, at + 1)) matches.push([at, at + words.length]);
    one.tokens.forEach((piece, t) => {
      const span = tag("span", {textContent: piece, className: one.removed.has(t) ? "clipped" : ""}, box);
      span.style.background = background((value(one, t) ?? 0) / full);
      span.dataset.token = t;
      const end = begin + piece.length;
      span.classList.toggle("match", matches.some(([a, b]) => a < end && begin < b));
      begin = end;
    });
    const which = (event) => event.target.dataset?.token;
    box.onmouseover = (event) => { if (which(event)) tell(one, +which(event)); };
    box.onmouseleave = () => { if (pinned) tell(pinned.one, pinned.t); else detail.textContent = idle; };
    box.onclick = (event) => { if (which(event)) pin(event.target, one, +which(event)); };
    box.onkeydown = (event) => {
      const move = {ArrowRight: 1, ArrowLeft: -1}[event.key];
      if (!move) return;
      const t = pinned?.one === one ? pinned.t + move : 0;
      if (box.children[t]) pin(box.children[t], one, t);
      event.preventDefault();
    };
    return box;
  }
  function draw(first = true) {
    if (first) most = PAGE;
    pinned = null;
    detail.textContent = idle;
    const words = search.value.toLowerCase();
    const full = colours[colour.value][1];
    scale.replaceChildren("Background: ", ...[-1, -0.5, 0.5, 1].flatMap((share) => [
      Object.assign(tag("span", {className: "swatch", textContent: number(share * full, 1)}), {style: `background: ${background(share)}`}), " "]),
      "; underlined: the method's clip, gate or mask removed the token's gradient.");
    const chosen = data.tokens.filter((one) => (!step.value || String(one.step) === step.value)
      && (!words || one.text.toLowerCase().includes(words) || one.prompt.toLowerCase().includes(words)));
    chosen.sort(orders[order.value]);
    count.textContent = `${chosen.length} of ${data.tokens.length} completions${words ? ` with “${search.value}”` : ""}, ${order.value} first`;
    list.replaceChildren(...chosen.slice(0, most).map((one) => {
      const article = tag("article", {className: "answer"});
      tag("div", {className: "facts", textContent: `step ${one.step}, ${one.why}: reward ${number(one.reward)}, advantage ${Array.isArray(one.advantage) ? "by token" : number(one.advantage)},`
        + ` drawn ${one.staleness} steps before, largest |log ratio| ${number(one.farthest)}, ${one.removed.size} of ${one.length} tokens clipped`
        + (one.length > one.tokens.length ? `, the first ${one.tokens.length} tokens kept` : "")}, article);
      const fold = tag("details", {open: one.prompt.length < 300}, article);
      tag("summary", {textContent: "prompt"}, fold);
      tag("div", {className: "prompt", textContent: one.prompt}, fold);
      article.append(tokens(one, words));
      return article;
    }));
    more.hidden = chosen.length <= most;
  }
  draw();
})();
