(() => {
  "use strict";
  const tip = document.getElementById("tip");

  const show = (html, x, y) => {
    tip.replaceChildren(...html);
    tip.hidden = false;
    const room = document.documentElement.clientWidth;
    const left = x + 16 + tip.offsetWidth > room ? x - tip.offsetWidth - 16 : x + 16;
    tip.style.left = `${Math.max(4, left) + scrollX}px`;
    tip.style.top = `${y + 14 + scrollY}px`;
  };
  const hide = () => { tip.hidden = true; };
  const make = (tag, text, name) => {
    const node = document.createElement(tag);
    node.textContent = text;
    if (name) node.className = name;
    return node;
  };
  const drawn = (name) => document.createElementNS("http://www.w3.org/2000/svg", name);

  // The browser's own tool tip would cover ours, so the picture's title becomes its label.
  document.querySelectorAll("svg.plot[data-x],svg.plot[data-heat]").forEach((svg) => {
    const title = svg.querySelector(":scope > title");
    svg.setAttribute("aria-label", title.textContent);
    svg.removeAttribute("aria-labelledby");
    title.remove();
  });

  // Line plots: a vertical rule with every policy's value, by mouse, touch or arrow keys.
  const numbers = (text) => text.split(" ").map(Number);
  document.querySelectorAll("svg.plot[data-x]").forEach((svg) => {
    const [left, right, low, high] = numbers(svg.dataset.x);
    const [bottom, top, least, most] = numbers(svg.dataset.y);
    const digits = Number(svg.dataset.digits);
    const unit = svg.dataset.unit;
    const lines = [...svg.querySelectorAll("polyline.line")].map((line) => ({
      line,
      name: line.dataset.name,
      points: line.getAttribute("points").split(" ").map((pair) => pair.split(",").map(Number)),
    }));
    const rule = drawn("line");
    rule.setAttribute("class", "reading-rule");
    rule.setAttribute("y1", top);
    rule.setAttribute("y2", bottom);
    let load = Math.round((low + high) / 2);

    const heightAt = (points, x) => {
      const after = points.findIndex((point) => point[0] >= x - 0.06);
      if (after < 0 || (after === 0 && points[0][0] > x + 0.06)) return null;
      if (after === 0) return points[0][1];
      const [a, b] = [points[after - 1], points[after]];
      return a[1] + ((b[1] - a[1]) * (x - a[0])) / (b[0] - a[0]);
    };
    const read = () => {
      const x = left + ((load - low) / (high - low)) * (right - left);
      const found = lines
        .filter(({ line }) => getComputedStyle(line).display !== "none")
        .map(({ line, name, points }) => [name, heightAt(points, x), line])
        .filter(([, y]) => y !== null)
        .map(([name, y, line]) => [
          name, least + ((y - bottom) / (top - bottom)) * (most - least), line])
        .sort((a, b) => b[1] - a[1]);
      const format = (value) => value.toLocaleString("en", {
        minimumFractionDigits: digits, maximumFractionDigits: digits });
      const rows = found.map(([name, value, line]) => {
        const row = make("span", "", "row");
        const said = make("span", "");
        said.append(make("i", "", `swatch ${/k\d+/.exec(line.getAttribute("class"))[0]}`), name);
        row.append(said, make("span", `${format(value)} ${unit}`));
        return row;
      });
      rule.setAttribute("x1", x);
      rule.setAttribute("x2", x);
      svg.append(rule);
      return [[make("b", `${load} % requested`), ...rows], x];
    };
    const leave = () => { rule.remove(); hide(); };
    svg.addEventListener("pointermove", (event) => {
      const box = svg.getBoundingClientRect();
      const x = ((event.clientX - box.left) / box.width) * svg.viewBox.baseVal.width;
      if (x < left - 4 || x > right + 4) return leave();
      load = Math.min(Math.max(Math.round(low + ((x - left) / (right - left)) * (high - low)),
        Math.ceil(low)), Math.floor(high));
      show(read()[0], event.clientX, event.clientY);
    });
    svg.addEventListener("pointerleave", leave);

    const holder = svg.parentElement;
    holder.tabIndex = 0;
    holder.setAttribute("role", "group");
    holder.setAttribute("aria-label", `${svg.getAttribute("aria-label")}: arrow keys read values`);
    holder.addEventListener("keydown", (event) => {
      const step = { ArrowLeft: -1, ArrowRight: 1, PageUp: 10, PageDown: -10 }[event.key];
      if (event.key === "Escape") return leave();
      if (!step) return;
      event.preventDefault();
      load = Math.min(Math.max(load + step, Math.ceil(low)), Math.floor(high));
      const [html, x] = read();
      const box = svg.getBoundingClientRect();
      show(html, box.left + (x / svg.viewBox.baseVal.width) * box.width, box.top + 20);
    });
    holder.addEventListener("blur", leave);
  });

  // Heat maps: the node under the pointer.
  document.querySelectorAll("svg.plot[data-heat]").forEach((svg) => {
    const [pitch, perRow] = numbers(svg.dataset.heat);
    const tops = numbers(svg.dataset.tops);
    const nodes = svg.dataset.nodes.split("|");
    svg.addEventListener("pointermove", (event) => {
      const box = svg.getBoundingClientRect();
      const scale = svg.viewBox.baseVal.width / box.width;
      const column = Math.floor(((event.clientX - box.left) * scale) / pitch);
      const row = tops.findLastIndex((top) => top <= (event.clientY - box.top) * scale);
      const node = column < perRow ? nodes[row * perRow + column] : undefined;
      if (node) show([make("span", node)], event.clientX, event.clientY);
      else hide();
    });
    svg.addEventListener("pointerleave", hide);
  });

  // Legends hide and show a policy in the plots of their section.
  document.querySelectorAll(".trace").forEach((section) => {
    section.querySelectorAll(".legend .entry").forEach((entry) => {
      const button = make("button", "");
      button.type = "button";
      button.setAttribute("aria-pressed", "true");
      button.append(...entry.childNodes);
      button.addEventListener("click", () => {
        const hidden = section.classList.toggle(`hide-${entry.dataset.series}`);
        button.setAttribute("aria-pressed", String(!hidden));
      });
      entry.append(button);
    });
  });

  // Results sort by a click on a heading: best first, then the other way round.
  document.querySelectorAll("table.sortable").forEach((table) => {
    const heads = [...table.tHead.rows[0].cells];
    const body = table.tBodies[0];
    heads.forEach((head, column) => {
      const button = make("button", "");
      button.type = "button";
      button.append(...head.childNodes);
      button.addEventListener("click", () => {
        const down = head.getAttribute("aria-sort") !== "descending" && column > 0
          || column === 0 && head.getAttribute("aria-sort") === "ascending";
        heads.forEach((other) => other.removeAttribute("aria-sort"));
        head.setAttribute("aria-sort", down ? "descending" : "ascending");
        const key = (row) => column ? Number(row.cells[column].dataset.sort ?? NaN)
          : row.cells[0].textContent;
        const order = (a, b) => {
          const [one, two] = [key(a), key(b)];
          if (Number.isNaN(one) || Number.isNaN(two)) return Number.isNaN(one) - Number.isNaN(two);
          return (one < two ? -1 : one > two ? 1 : 0) * (down ? -1 : 1);
        };
        body.append(...[...body.rows].sort(order));
      });
      head.append(button);
    });
  });
})();
