"use strict";
(async () => {
  const figures = JSON.parse(document.getElementById("figures").textContent);
  const hidden = new Set();
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  // plotly.js lies in the page compressed: unpacked it would make the file more than twice as large.
  async function unpack() {
    const packed = atob(document.getElementById("library").textContent);
    const bytes = Uint8Array.from(packed, (c) => c.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    const script = document.createElement("script");
    script.textContent = await new Response(stream).text();
    document.head.append(script);
    if (!window.Plotly) throw new Error("plotly.js did not start");
  }

  // The figure in the colours of the reader's scheme, without the algorithms that are switched off.
  function dressed(figure) {
    const { data, layout } = structuredClone(figure);
    const soft = colour("--soft"), grid = colour("--grid");
    Object.assign(layout.font, { color: soft });
    for (const axis of [layout.xaxis, layout.yaxis]) Object.assign(axis, { gridcolor: grid, linecolor: grid });
    layout.hoverlabel = {
      bgcolor: colour("--card"), bordercolor: colour("--rule"),
      font: { ...layout.font, color: colour("--ink") },
    };
    if (window.matchMedia("(pointer: coarse)").matches) layout.dragmode = false; // a swipe scrolls the page
    for (const trace of data) {
      trace.visible = !hidden.has(trace.legendgroup);
      if (trace.type === "heatmap") {
        trace.colorscale = trace.colorscale.map(([at], i) => [at, colour(`--heat-${i}`)]);
      }
    }
    return { data, layout };
  }

  function draw() {
    for (const [id, figure] of Object.entries(figures)) {
      const { data, layout } = dressed(figure);
      Plotly.react(id, data, layout, { displayModeBar: false, responsive: true });
    }
  }

  try {
    await unpack();
    draw();
  } catch (error) {
    document.getElementById("trouble").hidden = false;
    console.error(error);
    return;
  }
  for (const button of document.querySelectorAll(".legend button")) {
    button.addEventListener("click", () => {
      const group = button.dataset.group, shown = hidden.has(group);
      if (shown) hidden.delete(group); else hidden.add(group);
      button.setAttribute("aria-pressed", String(shown));
      draw();
    });
  }
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  document.documentElement.dataset.ready = "yes";
})();
