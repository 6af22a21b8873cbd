import java.util.List;
import org.apache.beam.sdk.Pipeline;
import org.apache.beam.sdk.coders.KvCoder;
import org.apache.beam.sdk.coders.RowCoder;
import org.apache.beam.sdk.coders.StringUtf8Coder;
import org.apache.beam.sdk.extensions.python.PythonExternalTransform;
import org.apache.beam.sdk.io.TextIO;
import org.apache.beam.sdk.options.PipelineOptions;
import org.apache.beam.sdk.options.PipelineOptionsFactory;
import org.apache.beam.sdk.options.Validation.Required;
import org.apache.beam.sdk.schemas.Schema;
import org.apache.beam.sdk.transforms.MapElements;
import org.apache.beam.sdk.transforms.SimpleFunction;
import org.apache.beam.sdk.util.PythonCallableSource;
import org.apache.beam.sdk.values.KV;
import org.apache.beam.sdk.values.PCollection;
import org.apache.beam.sdk.values.Row;

/** Lines of a name and four measurements in, lines of the name and the predicted species out. */
public class Flowers {
  private static final Schema MEASURED =
      Schema.builder()
          .addDoubleField("sepal_length")
          .addDoubleField("sepal_width")
          .addDoubleField("petal_length")
          .addDoubleField("petal_width")
          .build();

  public interface Options extends PipelineOptions {
    @Required
    String getInput();

    void setInput(String path);

    @Required
    String getOutput();

    void setOutput(String path);

    @Required
    String getModel();

    void setModel(String path);

    @Required
    String getExpansionService();

    void setExpansionService(String address);
  }

  public static void main(String[] args) {
    Options options = PipelineOptionsFactory.fromArgs(args).withValidation().as(Options.class);
    Pipeline pipeline = Pipeline.create(options);
    PCollection<KV<String, Row>> measured =
        pipeline
            .apply("Read", TextIO.read().from(options.getInput()))
            .apply("Parse", MapElements.via(new Parse()))
            .setCoder(KvCoder.of(StringUtf8Coder.of(), RowCoder.of(MEASURED)));
    PCollection<KV<String, Row>> predicted =
        measured.apply(
            "Predict",
            PythonExternalTransform.<PCollection<KV<String, Row>>, PCollection<KV<String, Row>>>from(
                    "headrace.beam.RunInference.from_callable", options.getExpansionService())
                .withKwarg("model_handler_provider", PythonCallableSource.of("flowers.make"))
                .withKwarg("model", options.getModel()));
    predicted
        .apply("Format", MapElements.via(new Format()))
        .apply("Write", TextIO.write().to(options.getOutput()).withoutSharding());
    pipeline.run().waitUntilFinish();
  }

  static class Parse extends SimpleFunction<String, KV<String, Row>> {
    @Override
    public KV<String, Row> apply(String line) {
      List<String> cells = List.of(line.split(","));
      Row.Builder row = Row.withSchema(MEASURED);
      cells.subList(1, cells.size()).forEach(cell -> row.addValue(Double.parseDouble(cell)));
      return KV.of(cells.get(0), row.build());
    }
  }

  static class Format extends SimpleFunction<KV<String, Row>, String> {
    @Override
    public String apply(KV<String, Row> one) {
      Row row = one.getValue();
      return one.getKey() + "," + row.getString("species") + "," + row.getDouble("probability");
    }
  }
}
