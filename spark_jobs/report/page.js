// Draws interactive charts. The static chart stays if the interactive one cannot be drawn.
const drawing = [];
for (const live of document.querySelectorAll("[data-chart]")) {
  const spec = JSON.parse(document.getElementById(live.dataset.chart).textContent);
  const drawn = live.previousElementSibling;
  live.hidden = false;
  drawing.push(
    vegaEmbed(live, spec, { actions: false, renderer: "svg", ast: true, tooltip: { theme: "custom" } }).then(
      () => drawn.classList.add("replaced"),
      (error) => {
        live.hidden = true;
        console.error(error);
      },
    ),
  );
}
Promise.all(drawing).then(() => document.documentElement.classList.add("ready"));
